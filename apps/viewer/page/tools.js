// What stands above a tree: search and filter, colour, zoom.
import { plural } from "./format.js";
import { html, useMemo } from "./html.js";
import { Choice, options, Search } from "./parts.js";

export function TreeTools({ asked, onAsked, hits, stage, action, onAction, nodes, onNext, children }) {
  const actions = useMemo(() => {
    const there = options(nodes.action, (name) => name, "every step");
    return nodes.failure.some(Boolean) ? [...there, ["refused", "refused"]] : there;
  }, [nodes]);
  const enter = (event) => {
    if (event.key === "Enter" && hits?.size) onNext();
  };
  return html`<div class="tools">
    <span class="search-next" onKeyDown=${enter}><${Search} label="Search this tree" value=${asked} onInput=${onAsked} />
      ${hits && html`<button type="button" class="quiet" disabled=${!hits.size} onClick=${onNext}>Next of ${plural(hits.size, "step")}</button>`}</span>
    <${Choice} label="Steps" hidden value=${action} onChange=${onAction} options=${actions} />
    ${children}
    <span class="zoom" role="group" aria-label="Zoom">
      <button type="button" class="quiet" aria-label="Farther" onClick=${() => stage.current?.zoom(1 / 1.4)}>−</button>
      <button type="button" class="quiet" onClick=${() => stage.current?.glide(stage.current.whole())}>Whole</button>
      <button type="button" class="quiet" aria-label="Closer" onClick=${() => stage.current?.zoom(1.4)}>+</button>
    </span>
  </div>`;
}
