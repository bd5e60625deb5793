// The one import of the vendored libraries: preact draws, htm writes its elements without a build step.
// Text that is put into a template becomes a text node. There is no way from here to markup.
import { h, render } from "../vendor/preact/preact.js";
import htm from "../vendor/htm/htm.js";

export { render };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact/hooks.js";
export const html = htm.bind(h);
