// The note and the tags of a run or an episode, and a form that changes them.
import { exported, path, send } from "view/data.js";
import { html, useEffect, useRef, useState } from "view/html.js";
import { Tag } from "view/parts.js";
import { Long, Text } from "view/text.js";

const [MOST_TAGS, MOST_LETTERS] = [20, 40]; // as in runs/storage/annotations.py

export const Tags = ({ tags }) => tags.map((tag) => html`<${Tag} kind="accent"><${Text}>${tag}</${Text}></${Tag}>`);

/** @param where the parts of the address: the key of a run, or those of an episode */
export function Notes({ annotation, where }) {
  const [own, setOwn] = useState(null); // what this page has saved and the server's answers do not contain yet
  const [open, setOpen] = useState(false);
  const opener = useRef();
  const stored = JSON.stringify(annotation);
  useEffect(() => setOwn(null), [stored, where.join("/")]);
  const { note, tags } = own ?? annotation;
  const close = (saved) => {
    if (saved) setOwn(saved);
    setOpen(false);
    setTimeout(() => opener.current?.focus());
  };
  if (exported && !note && !tags.length) return null;
  return html`<section class="notes" aria-label="note and tags">
    ${open
      ? html`<${Form} ...${{ note, tags, where, close }} />`
      : html`<div class="row"><${Tags} tags=${tags} />
          ${!exported && html`<button type="button" class="quiet small" ref=${opener} onClick=${() => setOpen(true)}>${note || tags.length ? "edit note and tags" : "add a note or tags"}</button>`}</div>
        ${note && html`<div class="noted"><${Long}>${note}</${Long}></div>`}`}
  </section>`;
}

function Form({ note, tags, where, close }) {
  const [problem, setProblem] = useState("");
  const field = useRef();
  useEffect(() => field.current.focus(), []);
  const save = (event) => {
    event.preventDefault();
    const { elements } = event.currentTarget;
    const given = elements.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    const long = given.find((tag) => tag.length > MOST_LETTERS);
    if (long) return setProblem(`The tag ${long} is too long; a tag has at most ${MOST_LETTERS} characters.`);
    if (given.length > MOST_TAGS) return setProblem(`There are ${given.length} tags; at most ${MOST_TAGS} are allowed.`);
    return send(path("annotations", ...where), { note: elements.note.value.trim(), tags: given }).then(close, (error) => setProblem(error.message));
  };
  const leave = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  };
  return html`<form class="stack card" onSubmit=${save} onKeyDown=${leave}>
    <label>Note <textarea name="note" rows="3" ref=${field} maxlength="10000" defaultValue=${note} /></label>
    <label>Tags, separated by commas <input name="tags" defaultValue=${tags.join(", ")} autocomplete="off" /></label>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <div class="row"><button type="submit">save</button><button type="button" class="quiet" onClick=${() => close()}>cancel</button></div>
  </form>`;
}
