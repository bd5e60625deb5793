// Colours of values: from rust (0) over grey to teal (1). Both ends differ in lightness too, so no one needs to tell red
// from green; marks and words say the same.

export const STEPS = 12;

/** The colours of the theme by their names in the style sheet, as "rgb(…)": a canvas does not know `light-dark()`. */
export function themeColours(...names) {
  const probe = document.body.appendChild(document.createElement("i"));
  const found = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}

/** The font of the style sheet. */
export const themeFont = () => getComputedStyle(document.documentElement).getPropertyValue("--font").trim();

/** Calls `again` whenever the theme changes, by choice or with the system; what is returned ends that. */
export function onThemeChange(again) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  window.addEventListener("themechange", again);
  dark.addEventListener("change", again);
  return () => {
    window.removeEventListener("themechange", again);
    dark.removeEventListener("change", again);
  };
}

/** What a tree is drawn with. */
export function palette() {
  const ends = themeColours("value-low", "value-middle", "value-high").map((colour) => colour.match(/\d+/g).map(Number));
  const ramp = Array.from({ length: STEPS }, (_, step) => {
    const at = (2 * step) / (STEPS - 1);
    const [from, to, share] = at <= 1 ? [ends[0], ends[1], at] : [ends[1], ends[2], at - 1];
    return `rgb(${from.map((part, i) => Math.round(part + share * (to[i] - part))).join(",")})`;
  });
  const [none, paper, raised, ink, soft, line, accent, right, wrong, found] = themeColours(
    "value-none", "paper", "raised", "ink", "ink-soft", "tree-line", "accent", "right", "wrong", "found",
  );
  return { ramp, none, paper, raised, ink, soft, line, accent, right, wrong, found, font: themeFont() };
}

/** The place of a value on the ramp, -1 without one. `range` is [least, greatest]. */
export function stepOf(value, [least, greatest]) {
  if (value === null || value === undefined) return -1;
  if (greatest <= least) return STEPS - 1;
  return Math.min(STEPS - 1, Math.max(0, Math.floor(((value - least) / (greatest - least)) * STEPS)));
}

/** Least and greatest of values; [0, 1] where they lie between. */
export function rangeOf(values) {
  let [least, greatest] = [0, 1];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < least) least = value;
    if (value > greatest) greatest = value;
  }
  return [least, greatest];
}
