// The reader's choice of colours, as a hook: each page draws its own button.
import { useState } from "./html.js";

const NEXT = { system: "light", light: "dark", dark: "system" };

/** The theme ("system", "light" or "dark"), the one after it, and a function that changes to that. */
export function useTheme() {
  const [theme, setTheme] = useState(window.steprag.stored() ?? "system");
  const next = NEXT[theme];
  return [theme, next, () => (window.steprag.set(next), setTheme(next))];
}
