// A list of any length that holds only the rows that are seen. One row is active; arrows, Page, Home and End move it.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const SPARE = 4;
const TALLEST = 15e6; // pixels: browsers draw nothing beyond 17.8 (Firefox) or 33.5 million (Chrome)

/**
 * `row(index)` draws a row's inside; `rowProps(index)` are further attributes of its element. `active` is an index or -1.
 * The element of an active row has the id that aria-activedescendant names, so screen readers follow the keyboard.
 */
export function VirtualList({ count, height, row, rowProps, rowRole, active, onActive, onKey, id, ...attributes }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, scrolled: 0, height: 400 });
  const whole = count * height;
  const inside = Math.min(whole, TALLEST);
  /** Pixels of the list for a pixel of the scroll bar: 1, or more where the list is taller than browsers draw. */
  const scale = (element) => (whole > inside ? (whole - element.clientHeight) / (inside - element.clientHeight) : 1);
  const measure = () => {
    const element = box.current;
    if (element) setView({ top: element.scrollTop * scale(element), scrolled: element.scrollTop, height: element.clientHeight });
  };
  useEffect(() => {
    const watcher = new ResizeObserver(measure);
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (active < 0 || !element) return;
    const [top, seen] = [active * height, element.scrollTop * scale(element)];
    if (top < seen) element.scrollTop = Math.max(0, top - height) / scale(element);
    else if (top + height > seen + element.clientHeight) {
      element.scrollTop = (top + 2 * height - element.clientHeight) / scale(element);
    }
    measure();
  }, [active, count, height]);

  function keyed(event) {
    const page = Math.max(1, Math.floor(view.height / height) - 1);
    const moves = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: count - 1 };
    if (onKey?.(event)) return event.preventDefault();
    if (!(event.key in moves) || !count || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    onActive(Math.min(count - 1, Math.max(0, moves[event.key])));
  }

  const first = Math.max(0, Math.floor(view.top / height) - SPARE);
  const last = Math.min(count, Math.ceil((view.top + view.height) / height) + SPARE);
  const rows = [];
  for (let index = first; index < last; index++) {
    const own = rowProps?.(index) ?? {};
    rows.push(html`<div key=${index} id=${`${id}-${index}`} role=${rowRole} aria-selected=${index === active ? "true" : "false"}
      aria-setsize=${count} aria-posinset=${index + 1} ...${own} class=${`row ${own.class ?? ""}`}
      style=${{ top: `${view.scrolled + index * height - view.top}px`, height: `${height}px` }} onClick=${() => onActive(index)}>${row(index)}</div>`);
  }
  const seen = active >= first && active < last;
  return html`<div class="virtual" ref=${box} tabindex="0" onScroll=${measure} onKeyDown=${keyed} id=${id}
    aria-activedescendant=${seen ? `${id}-${active}` : undefined} ...${attributes}>
    <div class="virtual-inside" role="presentation" style=${{ height: `${inside}px` }}>${rows}</div>
  </div>`;
}
