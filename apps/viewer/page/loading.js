// Hooks that bring data to components.
import { api, offline } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

const POLL = 2500;
const NONE = { data: null, error: null, loading: false };

/** What `load()` gives, whenever `keys` change; the answer to an earlier question is never shown for a later one. */
export function useLoaded(load, keys) {
  const [state, setState] = useState({ ...NONE, loading: true, keys: null });
  const mark = JSON.stringify(keys);
  useEffect(() => {
    if (!load) return setState({ ...NONE, keys: mark });
    let current = true;
    setState((before) => ({ ...before, error: null, loading: true }));
    load().then(
      (data) => current && setState({ data, error: null, loading: false, keys: mark }),
      (error) => current && setState({ data: null, error, loading: false, keys: mark }),
    );
    return () => {
      current = false;
    };
  }, [mark, !load]);
  return state.keys === mark ? state : { ...NONE, stale: state.data, loading: true };
}

const REST = 4; // pauses are so many times as long as the request before them

/**
 * What `load()` gives of something that grows: `stamp` asks again, `keys` say what is shown. One request is under way at
 * a time, and the pause after it keeps most of the server's time free: on a live run the stamp changes all the time.
 */
export function useLive(load, keys, stamp) {
  const mark = JSON.stringify(keys);
  const [state, setState] = useState({ ...NONE, mark: null });
  const next = useRef(null);
  const wake = useRef(null); // ends the pause; null while no request or pause is under way
  useEffect(() => {
    const other = next.current?.mark !== mark;
    next.current = { load, mark, wanted: true };
    if (!wake.current) ask();
    else if (other) wake.current();
  }, [mark, stamp]);
  useEffect(() => () => (next.current = null), []);
  async function ask() {
    wake.current = () => {};
    while (next.current?.wanted) {
      const mine = next.current;
      mine.wanted = false;
      const began = performance.now();
      const told = await mine.load().then((data) => ({ ...NONE, data }), (error) => ({ ...NONE, error }));
      if (next.current?.mark !== mine.mark) continue;
      setState({ ...told, mark: mine.mark });
      await new Promise((resolve) => {
        wake.current = resolve;
        setTimeout(resolve, REST * (performance.now() - began));
      });
    }
    wake.current = null;
  }
  return state.mark === mark ? state : NONE;
}

/** The runs, asked again every few seconds while the page is seen. */
export function useRuns() {
  const [state, setState] = useState({ runs: null, rules: [], error: null });
  const again = useRef(() => {});
  useEffect(() => {
    let timer = 0;
    let last = "";
    let ended = false;
    async function look() {
      clearTimeout(timer);
      try {
        const told = await api.runs();
        const mark = JSON.stringify(told);
        if (!ended && mark !== last) setState({ ...told, error: null });
        last = mark;
      } catch (error) {
        last = "";
        if (!ended) setState((before) => ({ ...before, error }));
      }
      if (!ended && !offline) timer = setTimeout(() => (document.hidden ? null : look()), POLL);
    }
    const seen = () => !document.hidden && look();
    again.current = look;
    look();
    if (!offline) document.addEventListener("visibilitychange", seen);
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, []);
  return { ...state, again: again.current };
}

const REDRAW = 300; // milliseconds between two redraws of a list that comes in
const EMPTY = { rows: [], faults: [], faultCount: 0, read: 0, size: 0, torn: false, complete: false, error: null };

/**
 * All rows of a run's files of a kind, as they come in; `stamp` asks again for what was added.
 * A row has `file`, the number of its file. Rows that a file no longer holds go with its generation.
 */
export function useRows(run, kind, files, stamp) {
  const [state, setState] = useState(EMPTY);
  const kept = useRef({ key: "" });
  useEffect(() => {
    const key = `${run}/${kind}`;
    if (kept.current.key !== key) {
      kept.current = { key, parts: [], drawn: -REDRAW };
      setState(EMPTY);
    }
    const mine = kept.current;
    let ended = false;
    async function read(file) {
      const part = (mine.parts[file] ??= { rows: [], generation: null, told: null });
      for (let complete = false; !complete && !ended; ) {
        let told = await api.rows(run, kind, file, part.rows.length);
        if (part.generation !== null && told.generation !== part.generation) {
          part.rows = [];
          told = await api.rows(run, kind, file, 0);
        }
        if (ended) return;
        part.generation = told.generation;
        for (const row of told.rows) part.rows.push({ ...row, file });
        part.told = told;
        complete = told.complete || offline;
        if (complete || performance.now() - mine.drawn > REDRAW) {
          mine.drawn = performance.now();
          setState(summed(mine.parts));
        }
      }
    }
    (async () => {
      try {
        for (let file = 0; file < files; file++) await read(file);
      } catch (error) {
        if (!ended) setState((before) => ({ ...before, error }));
      }
    })();
    return () => {
      ended = true;
    };
  }, [run, kind, files, stamp]);
  return state;
}

const TYPING = 250; // milliseconds without a key after which a search begins
const STILL = { hits: null, words: "" };

/** A row's place among all files of its kind: "file.line". */
export const rowKey = ({ file, line }) => `${file}.${line}`;

/**
 * The rows, by `rowKey`, whose texts have all the words asked for: a set that grows while the files are searched, and
 * `words` on how far that is. `hits` is null where nothing is searched, and in a file that opens without a server.
 */
export function useHits(run, kind, files, asked) {
  const [state, setState] = useState(STILL);
  const sought = asked.trim();
  useEffect(() => {
    setState(STILL);
    if (offline || sought.length < 2) return undefined;
    let ended = false;
    async function search() {
      const hits = new Set();
      const notes = new Set();
      for (let file = 0; file < files; file++) {
        for (let from = 0, told = null; !ended && !told?.complete; from = told.next) {
          const before = told?.generation;
          told = await api.search(kind, run, file, sought, from);
          if (before !== undefined && before !== told.generation) return search(); // another file stands there now
          for (const line of told.lines) hits.add(rowKey({ file, line }));
          if (told.note) notes.add(told.note);
          if (!ended) setState({ hits: new Set(hits), words: `Searching texts: ${told.of ? Math.floor((100 * told.next) / told.of) : 0} %` });
        }
      }
      if (!ended) setState({ hits, words: [`${hits.size} by their texts`, ...notes].join("; ") });
    }
    const timer = setTimeout(() => search().catch((error) => !ended && setState({ hits: null, words: error.message })), TYPING);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [run, kind, files, sought]);
  return state;
}

function summed(parts) {
  const told = parts.filter((part) => part?.told);
  const total = (name) => told.reduce((sum, part) => sum + part.told[name], 0);
  return {
    rows: told.flatMap((part) => part.rows),
    faults: told.flatMap((part) => part.told.faults.map((fault) => ({ ...fault, name: part.told.name }))),
    faultCount: total("fault_count"),
    read: total("read"),
    size: total("size"),
    torn: told.some((part) => part.told.torn),
    complete: told.every((part) => part.told.complete),
    error: null,
  };
}
