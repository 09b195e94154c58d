// Preact and htm, as all modules use them. Values in html`…` become text, never markup.
import { Fragment, h, render } from "preact";
import htm from "htm";

export const html = htm.bind(h);
export { Fragment, h, render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
