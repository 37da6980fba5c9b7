// The page around the tables: copying the command, the place in the contents, news of a sweep.
"use strict";
(() => {
  for (const button of document.querySelectorAll("[data-copy-command]")) {
    const command = button.parentElement.querySelector("code").textContent;
    button.hidden = false;
    button.addEventListener("click", () => dpbench.copy(command, button));
  }

  // Paper cannot be unfolded.
  addEventListener("beforeprint", () => {
    for (const more of document.querySelectorAll("details:not(.chooser)")) more.open = true;
  });

  // Who follows a link to a question wants its answer.
  const unfold = () => {
    const aim = location.hash && document.getElementById(location.hash.slice(1));
    const folded = aim && aim.closest("details.question");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  const links = new Map();
  for (const link of document.querySelectorAll(".contents a")) links.set(link.hash.slice(1), link);
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      const link = links.get(entry.target.querySelector("[id]").id);
      link?.setAttribute("aria-current", "location");
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const section of document.querySelectorAll(".question")) seen.observe(section);

  // What scrolls can be reached by keyboard; what does not is no stop on the way.
  const reachable = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".chart .scroll")) reachable.observe(box);
})();
