// The form that is shown where the service wants its token.
import { html, useState } from "./html.js";

export function SignIn({ controller }) {
  const [wrong, setWrong] = useState(null);
  async function send(event) {
    event.preventDefault();
    setWrong(await controller.signIn(new FormData(event.currentTarget).get("token")));
  }
  return html`<form class="sign-in" onSubmit=${send}>
    <h1>StepRAG</h1>
    <p>This service wants its token. <code>steprag serve</code> printed a link that holds it.
      Open that link, or paste it here.</p>
    <label for="token">Link or token</label>
    <input id="token" name="token" type="password" autocomplete="off" required aria-describedby="token-wrong" />
    <p id="token-wrong" class="wrong-words" role="alert">${wrong}</p>
    <button type="submit" class="primary">Open</button>
  </form>`;
}
