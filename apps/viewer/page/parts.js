// Small pieces that several pages use.
import { offline } from "./api.js";
import { bytes, count, plural } from "./format.js";
import { html } from "./html.js";

/** What a file still hides: how far it was read, lines that are none, a last line that is not whole. */
export function FileNotes({ state }) {
  const { faults, faultCount, torn, complete, error, read, size, rows } = state;
  return html`<div class="file-notes">
    ${error && html`<p class="fault-words" role="alert">${error.message}</p>`}
    ${!complete && !error && html`<p role="status">${size ? `Reading: ${bytes(read)} of ${bytes(size)}` : "Reading …"}</p>`}
    ${complete && !rows.length && !faultCount && html`<p>Nothing is in the file yet.</p>`}
    ${torn && html`<p>The last line is not whole yet.</p>`}
    ${faultCount > 0 && html`<details class="faults"><summary>${plural(faultCount, "line")} cannot be read</summary>
      <ul>${faults.map((fault) => html`<li>${fault.name}:${fault.line}: ${fault.message}</li>`)}</ul></details>`}
  </div>`;
}

/** A labelled choice; `options` are values or [value, words]. */
export function Choice({ label, value, options, onChange, hidden = false }) {
  return html`<label class="choice"><span class=${hidden ? "unseen" : ""}>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map((option) => (Array.isArray(option) ? option : [option, option]))
        .map(([own, words]) => html`<option value=${own}>${words}</option>`)}
    </select></label>`;
}

/** What a search above a list looks at. */
export const SEARCH = offline ? "Search questions" : "Search all texts";

export function Search({ label, value, onInput, children }) {
  return html`<label class="search"><span class="unseen">${label}</span>
    <input type="search" placeholder=${label} value=${value} onInput=${(event) => onInput(event.target.value)} />${children}</label>`;
}

export const Shown = ({ shown, all, word }) =>
  html`<p class="shown" role="status">${shown === all ? plural(all, word) : `${count(shown)} of ${plural(all, word)}`}</p>`;

/** How a search of texts stands; nothing where none is under way. */
export const SearchNotes = ({ found }) => (found.words ? html`<p class="shown" role="status">${found.words}</p>` : null);

export const Action = ({ name }) => html`<span class="action" data-action=${name}>${name ?? "question"}</span>`;

/** A list of names and values; values that are missing are left out. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Text exactly as it is, spaces and all. */
export const Raw = ({ children, label }) => html`<pre class="raw" tabindex="0" aria-label=${label} role="region">${children}</pre>`;

export function Messages({ messages }) {
  return html`<div class="messages">${messages.map((message) => html`<div class="message">
    <span class="role">${message.role}</span><${Raw} label=${`Message of the ${message.role}`}>${message.content}<//></div>`)}</div>`;
}

export const Fault = ({ error }) => (error ? html`<p class="fault-words" role="alert">${error.message}</p>` : null);

/** The way back from a single record to the list, on narrow screens. */
export const Back = ({ href, children }) => html`<a class="back" href=${href}>‹ ${children}</a>`;

/** Values of a column that occur, for a filter, with "all" before them. */
export function options(rows, read, all = "all") {
  const found = [...new Set(rows.flatMap((row) => read(row) ?? []))].filter((value) => value !== null && value !== "");
  found.sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
  return [["", all], ...found.map((value) => [String(value), String(value)])];
}
