// Keeps the newest words in view while the reader is at the end of the page, and leaves whoever reads further up alone.
import { useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const NEAR = 120; // pixels from the end that still count as the end

const isAtEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - NEAR;
const toEnd = () => window.scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });

/** Whether the reader is away from the end, and a function that leads there. */
export function useLatest(conversation, turns) {
  const [away, setAway] = useState(false);
  const stuck = useRef(true);
  useEffect(() => {
    let before = window.scrollY;
    const scrolled = () => {
      if (window.scrollY < before - 2) stuck.current = false; // only a reader scrolls up
      if (isAtEnd()) stuck.current = true;
      before = window.scrollY;
      setAway(!isAtEnd());
    };
    window.addEventListener("scroll", scrolled, { passive: true });
    return () => window.removeEventListener("scroll", scrolled);
  }, []);
  useLayoutEffect(() => {
    stuck.current = true;
  }, [conversation, turns.length]);
  useLayoutEffect(() => {
    if (stuck.current && turns.length) toEnd();
    setAway(turns.length > 0 && !isAtEnd());
  }, [turns.length, turns[turns.length - 1]]);
  return [away, () => ((stuck.current = true), toEnd())];
}
