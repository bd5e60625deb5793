// What a search found, and how a passage is shown: title, score, address, and its text with the evidence marked.
import { DocumentLink } from "./files.js";
import { html } from "./html.js";
import { markSpans, webAddress } from "./text.js";
import { count, sentence, sourceName } from "./words.js";

/** A search's passages, folded; the summary names their titles. */
export function Search({ turn, search, spans, chips }) {
  const { items, source, why } = search;
  const chosen = why && html`<p class="line quiet">Auto chose ${sourceName(source)}: ${sentence(why, false)}</p>`;
  if (!items.length) return html`${chosen}<p class="line quiet">Nothing found in ${sourceName(source)}.</p>`;
  const marked = items.filter((item) => spans.get(item.n)?.length).length;
  return html`${chosen}<details class="found">
    <summary>
      <span class="found-count">
        ${count(items.length, "passage")} from ${sourceName(source)}${marked > 0 && `, ${marked} cited`}
      </span>
      <span class="found-titles">${items.map((item) => item.title || item.id).join(" · ")}</span>
    </summary>
    <ol class="passages">
      ${items.map((item) => html`<li key=${item.n}>
        <p class="passage-head">
          ${chips.has(item.n) && html`<span class="number">${chips.get(item.n)}</span> `}<b>${item.title || item.id}</b>
          <span class="score quiet" title="Score of the search">${item.score?.toFixed(2) ?? ""}</span>
        </p>
        <${PassageText} turn=${turn} item=${item} spans=${spans.get(item.n) ?? []} />
      </li>`)}
    </ol>
  </details>`;
}

/** A passage's text; what an answer rests on is marked. An address of the web is a link, any other is text; a document
 * opens at its page. */
export function PassageText({ turn, item, spans }) {
  return html`<div class="passage">
    <p>${markSpans(item.text, spans).map((piece, place) => piece.marked
      ? html`<mark key=${place}>${piece.text}</mark>` : html`<span key=${place}>${piece.text}</span>`)}</p>
    <${Address} url=${item.url} />
    <${DocumentLink} turn=${turn} item=${item} />
  </div>`;
}

function Address({ url }) {
  if (!url) return null;
  const href = webAddress(url);
  if (!href) return html`<p class="address quiet">${url}</p>`;
  return html`<p class="address"><a href=${href} target="_blank" rel="noopener noreferrer">${url}</a></p>`;
}
