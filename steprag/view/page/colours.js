// Colours of values: from rust (0) over grey to teal (1). Both ends differ in lightness too, so no one needs to tell red
// from green; marks and words say the same.

export const STEPS = 12;

/** The colours of a theme, read from the style sheet. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const ends = ["--value-low", "--value-middle", "--value-high"].map((name) => rgb(read(name)));
  const ramp = Array.from({ length: STEPS }, (_, step) => {
    const at = (2 * step) / (STEPS - 1);
    const [from, to, share] = at <= 1 ? [ends[0], ends[1], at] : [ends[1], ends[2], at - 1];
    return `rgb(${from.map((part, i) => Math.round(part + share * (to[i] - part))).join(",")})`;
  });
  return {
    ramp, none: read("--value-none"), paper: read("--paper"), ink: read("--ink"), soft: read("--ink-soft"),
    line: read("--tree-line"), accent: read("--accent"), right: read("--right"), wrong: read("--wrong"), found: read("--found"),
    font: read("--font"),
  };
}

function rgb(hex) {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
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
