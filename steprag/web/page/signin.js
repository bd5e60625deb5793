// Signing in: by the token that the address names, or by the form that asks for it.
import { html, useState } from "./html.js";

/** What stands behind the "#" of an address: #token=…, #c=… A plus is a plus: tokens may hold it. */
export const named = (hash) => new URLSearchParams(hash.replace(/^#/, "").replaceAll("+", "%2B"));

/** The form. `signIn(token)` asks the service, which says what is wrong; `signed` is called once it knows us. */
export function SignIn({ title, service, command, signIn, signed }) {
  const [wrong, setWrong] = useState(null);
  async function send(event) {
    event.preventDefault();
    const typed = new FormData(event.currentTarget).get("token");
    try {
      await signIn(named(typed.slice(typed.indexOf("#") + 1)).get("token") ?? typed.trim());
      signed();
    } catch (error) {
      setWrong(error.message);
    }
  }
  return html`<main class="sign-in"><form onSubmit=${send}>
    <h1>${title}</h1>
    <p>${service} wants its token. <code>${command}</code> printed a link that holds it. Open that link, or paste it here.</p>
    <label for="token">Link or token</label>
    <input id="token" name="token" type="password" autocomplete="off" required aria-describedby="token-wrong" />
    <p id="token-wrong" class="wrong-words" role="alert">${wrong}</p>
    <button type="submit" class="primary">Open</button>
  </form></main>`;
}
