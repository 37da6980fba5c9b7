// Runs before anything is painted: the theme that was chosen on an earlier visit, if any.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const shown = () => root.dataset.theme || system();
  try {
    const chosen = localStorage.getItem("dpbench-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch { /* storage is forbidden here: the system's theme then */ }

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = shown() === "dark" ? "Light theme" : "Dark theme"; };
    button.addEventListener("click", () => {
      const next = shown() === "dark" ? "light" : "dark";
      // Back at the system's theme, nothing is remembered: it follows the system again.
      if (next === system()) delete root.dataset.theme;
      else root.dataset.theme = next;
      try {
        if (root.dataset.theme) localStorage.setItem("dpbench-theme", next);
        else localStorage.removeItem("dpbench-theme");
      } catch { /* not remembered */ }
      label();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
    label();
    button.hidden = false;
  });
})();
