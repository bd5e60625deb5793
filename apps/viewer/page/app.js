// The whole page: the bar, the tabs of a run, and what stands below them.
import { ApiError, api, offline } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { useRuns } from "./loading.js";
import { PairsPage } from "./pairs.js";
import { PredictionsPage } from "./predictions.js";
import { QualityPage } from "./quality.js";
import { LeftOut, RunsPage, Standing } from "./runs.js";
import { go, link, useRoute } from "./route.js";
import { named, SignIn } from "./signin.js";
import { useTheme } from "./themechoice.js";
import { TrainingPage } from "./training.js";
import { TreesPage } from "./trees.js";

const TABS = [
  ["trees", "Trees", TreesPage, ["trees"]],
  ["pairs", "Pairs", PairsPage, ["pairs"]],
  ["predictions", "Predictions", PredictionsPage, ["predictions"]],
  ["quality", "Quality", QualityPage, ["trees", "predictions", "episodes"]],
  ["training", "Curves", TrainingPage, ["series", "episodes"]],
];
/** What one comes to a run of a stage for; of others the first tab that there is. */
const OWN = { train: "training" };

export function App() {
  const [signed, setSigned] = useState(offline ? true : null);
  useEffect(() => {
    if (!offline) signInByLink().then(setSigned);
  }, []);
  if (signed === null) return null;
  if (signed) return html`<${Viewer} onRefused=${() => setSigned(false)} />`;
  return html`<${SignIn} title="StepRAG view" service="The viewer" command="steprag view" signIn=${api.signIn}
    signed=${() => setSigned(true)} />`;
}

/** Hands in the token of the printed link, and takes it out of the address. */
async function signInByLink() {
  const token = named(location.hash).get("token");
  if (token === null) return true; // the cookie may know us
  history.replaceState(null, "", location.pathname);
  try {
    await api.signIn(token);
    return true;
  } catch {
    return false;
  }
}

function Viewer({ onRefused }) {
  const { runs, rules, error, again } = useRuns();
  const route = useRoute();
  const refused = error instanceof ApiError && error.status === 401;
  useEffect(() => {
    if (refused) onRefused();
  }, [refused]);
  if (!runs) return html`<main class="empty"><p role="status">${error ? error.message : "Opening the runs …"}</p></main>`;
  const run = runs.find((one) => one.key === route.run) ?? (runs.length === 1 ? runs[0] : null);
  const tabs = run ? tabsOf(run) : [];
  const tab = tabs.find(([name]) => name === route.tab) ?? tabs[0];
  const here = { ...route, run: run?.key ?? "", tab: tab?.[0] ?? "" };
  const Page = tab?.[2];
  return html`
    <header class="bar">
      <span class="brand"><svg class="logo" viewBox="0 0 32 32" aria-hidden="true"><path d="M6 16h6m0 0 7-8h5m-12 8h12m-12 0 7 8h5" />
        <circle cx="6" cy="16" r="4" /><circle cx="25" cy="8" r="3.2" /><circle cx="25" cy="16" r="3.2" /><circle cx="25" cy="24" r="3.2" /></svg>
        <h1>StepRAG <span>view</span></h1></span>
      ${run && html`<label class="run-choice"><span class="unseen">Run</span>
        <select value=${run.key} onChange=${(event) => go({ run: event.target.value, tab: keptTab(runs, event.target.value, run, here.tab) })}>
          ${runs.map((one) => html`<option value=${one.key}>${one.key}</option>`)}
        </select></label>`}
      <nav aria-label="What to view">
        ${runs.length !== 1 && html`<a href="#/" aria-current=${run ? undefined : "page"}>Runs</a>`}
        ${tabs.map(([name, words]) => html`<a href=${link({ run: run.key, tab: name })}
          aria-current=${name === here.tab ? "page" : undefined}>${words}</a>`)}
      </nav>
      <${RunWords} run=${run} error=${error} />
      <${ThemeChoice} />
    </header>
    <main>
      ${!run && html`<${RunsPage} runs=${runs} />`}
      ${run?.fault && html`<p class="fault-words banner" role="alert">${run.fault}</p>`}
      ${run && html`<${Standing} run=${run} /><${LeftOut} run=${run} />`}
      ${Page && html`<${Page} key=${`${run.key}/${here.tab}`} run=${run} runs=${runs} rules=${rules} route=${here} again=${again} />`}
      ${run && !Page && html`<p class="empty">Nothing of this run can be shown yet. What appears in its folder appears here.</p>`}
    </main>`;
}

/** The tabs of a run, what one came for first. */
function tabsOf(run) {
  const there = TABS.filter(([, , , kinds]) => kinds.some((kind) => run.kinds.includes(kind)));
  const own = there.find(([name]) => name === OWN[run.stage]);
  return own ? [own, ...there.filter((one) => one !== own)] : there;
}

/** The tab that another run opens with: the same for a run of the same stage, else its own first one. */
const keptTab = (runs, key, before, tab) => (runs.find((one) => one.key === key)?.stage === before.stage ? tab : "");

function RunWords({ run, error }) {
  const words = run ? [run.stage, run.model, run.status].filter(Boolean).join(" · ") : "";
  return html`<p class="run-words" title=${run?.version ? `version ${run.version}, ${run.started ?? ""}` : ""}>
    ${run?.status === "running" && !error && !offline && html`<span class="live-dot" aria-hidden="true"></span>`}
    ${error ? html`<span class="fault-words" role="alert">${error.message}</span>` : words}
  </p>`;
}

const THEMES = { system: "System colours", light: "Light", dark: "Dark" };

function ThemeChoice() {
  const [theme, next, change] = useTheme();
  return html`<button type="button" class="quiet theme-choice" title=${`${THEMES[theme]}; press for: ${THEMES[next]}`}
    aria-label=${`Colours: ${THEMES[theme]}. Change to ${THEMES[next]}`}
    onClick=${change}>
    <svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="8" /><path d="M12 4a8 8 0 0 1 0 16z" class="filled" /></svg>
  </button>`;
}
