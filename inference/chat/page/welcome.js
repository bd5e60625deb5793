// The first screen: what this is, how it works, three questions to try, and what answers.
import { html } from "./html.js";
import { Icon } from "./icons.js";
import { actionName } from "./words.js";

/** Questions that the embedded world Atlas can answer: two steps, a comparison, three steps. */
const EXAMPLES = [
  "Which currency is used in the country whose capital is Tirana?",
  "Which country has more inhabitants, Kenya or Ethiopia?",
  "In which language are the laws of the country where George de Hevesy worked written?",
];

const STEPS = [
  ["query", "It asks a search engine what it needs to know."],
  ["evidence", "It reads the passages and keeps what helps."],
  ["answer", "It asks again, or answers. You see the sources."],
];

export function Welcome({ info, mode, controller }) {
  return html`<section class="welcome">
    <h1>Ask a question, watch the work.</h1>
    <p class="lead">StepRAG is a search agent. You see every step as it is written, and you can open or change each one.
    </p>
    <ol class="how">
      ${STEPS.map(([action, words]) => html`<li key=${action} data-action=${action}>
        <b>${actionName(action)}</b> <span>${words}</span>
      </li>`)}
    </ol>
    <h2>Try one</h2>
    <ul class="examples">
      ${EXAMPLES.map((question) => html`<li key=${question}>
        <button type="button" onClick=${() => controller.ask(question, { mode, rewrite: true })}>
          <span>${question}</span><${Icon} name="send" />
        </button>
      </li>`)}
    </ul>
    <dl class="who">
      <div><dt>Model</dt><dd>${info.model}</dd></div>
      <div><dt>Index</dt><dd>${info.index}</dd></div>
    </dl>
  </section>`;
}
