// The page's icons: strokes in the colour of the text around them. They are decoration; the words stand beside them.
import { html } from "./html.js";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  look: "M8 6l-5 6 5 6M16 6l5 6-5 6",
  copy: "M9 9h10v11H9zM5 15V4h10",
  right: "M5 13l4 4L19 7",
  wrong: "M6 6l12 12M18 6L6 18",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  dark: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  down: "M12 5v14M6 13l6 6 6-6",
  fork: "M7 4v16M7 12h6a4 4 0 0 0 4-4V4M14 7l3-3 3 3",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.5 17a1.7 1.7 0 0 1-2.4-2.4L15 6.7",
  again: "M19 12a7 7 0 1 1-2-5M19 3v5h-5",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button that shows an icon alone; `label` is its name. */
export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}

/** A small button with an icon and a word. */
export function SmallButton({ icon, children, ...rest }) {
  return html`<button type="button" class="small-button" ...${rest}>
    <${Icon} name=${icon} /><span>${children}</span>
  </button>`;
}
