// The colour theme, set before the page is painted, so that nothing flashes. A classic script for that reason.
// The theme is the only thing that the page keeps in the browser: "light", "dark", or nothing (as the system has it).
"use strict";

window.steprag = (() => {
  const THEMES = ["light", "dark"];

  function stored() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // a browser that keeps nothing for this page
    }
  }

  function set(theme) {
    const known = THEMES.includes(theme);
    if (known) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    try {
      if (known) localStorage.setItem("theme", theme);
      else localStorage.removeItem("theme");
    } catch {
      // it holds until the page is closed
    }
    window.dispatchEvent(new Event("themechange"));
  }

  set(stored());
  return { stored, set };
})();
