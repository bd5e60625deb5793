// The first screen: what this is, how it works, questions to try, and what answers.
import { html } from "./html.js";
import { Icon } from "./icons.js";
import { actionName } from "./words.js";

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
    ${info.about && html`<p class="about">${info.about}</p>`}
    ${info.files && html`<p class="about">Drop files of your own anywhere on this page, or take the paper clip below: the agent
      searches them first, then the index.</p>`}
    <ol class="how">
      ${STEPS.map(([action, words]) => html`<li key=${action} data-action=${action}>
        <b>${actionName(action)}</b> <span>${words}</span>
      </li>`)}
    </ol>
    ${info.examples.length > 0 && html`<h2>Try one</h2>
    <ul class="examples">
      ${info.examples.map((question) => html`<li key=${question}>
        <button type="button" onClick=${() => controller.ask(question, { mode, rewrite: true })}>
          <span>${question}</span><${Icon} name="send" />
        </button>
      </li>`)}
    </ul>`}
    <dl class="who">
      <div><dt>Model</dt><dd>${info.model}</dd></div>
      <div><dt>Index</dt><dd>${info.index}</dd></div>
    </dl>
  </section>`;
}
