// The page's place, in the address behind "#": /RUN/TAB/PLACE/MORE/ONLY. Links can be kept and sent.
import { useEffect, useState } from "./html.js";

export function parse(hash) {
  const parts = hash.replace(/^#\/?/, "").split("/").map(decoded);
  const [run = "", tab = "", place = "", more = "", only = ""] = parts;
  return { run, tab, place, more, only };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return ""; // no place of ours
  }
}

export function link({ run, tab, place = "", more = "", only = "" }) {
  const parts = [run, tab, String(place), String(more), only].map(encodeURIComponent);
  while (parts.at(-1) === "") parts.pop();
  return `#/${parts.join("/")}`;
}

/** Goes there. `quietly`: without a step in the browser's history. */
export function go(route, quietly = false) {
  const hash = link(route);
  if (hash === location.hash) return;
  if (quietly) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  window.dispatchEvent(new Event("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const follow = () => setRoute(parse(location.hash));
    window.addEventListener("hashchange", follow);
    window.addEventListener("popstate", follow);
    return () => {
      window.removeEventListener("hashchange", follow);
      window.removeEventListener("popstate", follow);
    };
  }, []);
  return route;
}
