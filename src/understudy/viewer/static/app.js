// The frame of every page: navigation, theme and keys.
import { html, render, useEffect, useState } from "view/html.js";
import { exported, left_out, path, usePolled } from "view/data.js";
import { listed, useKeys } from "view/keys.js";
import { Answered, Dialog, Empty } from "view/parts.js";
import { go, href, useRoute } from "view/router.js";
import { next_theme, set_theme, theme } from "view/theme.js";
import * as episode from "view/pages/episode.js";
import * as episodes from "view/pages/episodes.js";
import * as evaluations from "view/pages/evaluations.js";
import * as runs from "view/pages/runs.js";

// A page is a module with `title` and `Page({overview, args, query})`. Its name is the first part of its address.
const PAGES = { "": runs, episode, episodes, evaluations };
const TABS = [
  ["", "Runs", "g"],
  ["episodes", "Episodes", "e"],
  ["evaluations", "Evaluations", "v"],
];
const EVERY = 2; // seconds between two requests for the overview

function App() {
  const { name, args, query } = useRoute();
  const [help, setHelp] = useState(false);
  const { data, error } = usePolled(path("overview"), EVERY);
  const page = PAGES[name];
  useEffect(() => {
    document.title = page ? `${[...args, page.title].join(" · ")} – understudy` : "understudy";
  }, [name, ...args]);
  useKeys({
    "?": ["show the keys", () => setHelp(!help)],
    t: ["switch the theme: light, dark or the system's", () => set_theme(next_theme())],
    ...Object.fromEntries(TABS.map(([tab, title, key]) => [key, [`go to ${title}`, () => go(href(tab))]])),
  });
  return html`
    <a class="skip" href="#main" onClick=${skip}>skip to the content</a>
    <header class="top">
      <a class="brand" href="#/">understudy</a>
      <nav aria-label="pages">
        ${TABS.map(([tab, title]) => html`<a href=${href(tab)} aria-current=${tab === name ? "page" : null}>${title}</a>`)}
      </nav>
      <span class="space" />
      ${exported && html`<span class="faint exported">exported</span>`}
      <${Theme} />
      <button type="button" class="quiet" onClick=${() => setHelp(true)} aria-label="keys">?</button>
    </header>
    <main id="main" tabindex="-1">
      ${left_out.length > 0 && html`<details class="left-out small"><summary>This file is incomplete. Run understudy view on the folder to see everything.</summary>
        <ul>${left_out.map((line) => html`<li>${line}</li>`)}</ul></details>`}
      ${data && error && html`<p class="problem" role="alert">${error}</p>`}
      ${!page
        ? html`<${Empty}>There is no page ${name}. <a href="#/">Show the runs</a></${Empty}>`
        : html`<${Answered} answer=${data ? { data } : { error }}>${(overview) => html`<${page.Page} ...${{ overview, args, query }} />`}</${Answered}>`}
    </main>
    ${help && html`<${Keys} onClose=${() => setHelp(false)} />`}
  `;
}

function skip(event) {
  event.preventDefault(); // the hash holds the page's address
  document.getElementById("main").focus();
}

function Theme() {
  const [, again] = useState(0);
  useEffect(() => {
    const changed = () => again((n) => n + 1);
    addEventListener("theme", changed);
    return () => removeEventListener("theme", changed);
  }, []);
  const says = `theme: ${theme()}; switch to ${next_theme()}`;
  return html`<button type="button" class="quiet" title=${says} aria-label=${says} onClick=${() => set_theme(next_theme())}>
    ${{ system: "◐", light: "☀", dark: "☾" }[theme()]}
  </button>`;
}

const Keys = ({ onClose }) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys">${listed().map(([key, does]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
</${Dialog}>`;

render(html`<${App} />`, document.getElementById("app"));
