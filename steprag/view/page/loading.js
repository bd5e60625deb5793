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

const EMPTY = { rows: [], faults: [], faultCount: 0, read: 0, size: 0, torn: false, complete: false, error: null };

/**
 * All rows of a run's files of a kind, as they come in; `stamp` asks again for what was added.
 * A row has `file`, the number of its file. Rows that a file no longer holds go with its generation.
 */
export function useRows(run, kind, files, stamp) {
  const [state, setState] = useState(EMPTY);
  const kept = useRef({ key: "", parts: [] });
  useEffect(() => {
    const key = `${run}/${kind}`;
    if (kept.current.key !== key) {
      kept.current = { key, parts: [] };
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
        part.rows = part.rows.concat(told.rows.map((row) => ({ ...row, file })));
        part.told = told;
        complete = told.complete || offline;
        setState(summed(mine.parts));
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

function summed(parts) {
  const told = parts.filter((part) => part?.told);
  const total = (name) => told.reduce((sum, part) => sum + part.told[name], 0);
  return {
    rows: told.length === 1 ? told[0].rows : told.flatMap((part) => part.rows),
    faults: told.flatMap((part) => part.told.faults.map((fault) => ({ ...fault, name: part.told.name }))),
    faultCount: total("fault_count"),
    read: total("read"),
    size: total("size"),
    torn: told.some((part) => part.told.torn),
    complete: told.every((part) => part.told.complete),
    error: null,
  };
}
