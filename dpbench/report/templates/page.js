// Tables are sorted and filtered, their columns are chosen, and the commands of rows copied.
"use strict";
const order = new Intl.Collator("en", { numeric: true });

function valueOf(cell) {
  const raw = cell.dataset.v ?? cell.textContent;
  return raw === "" ? null : Number.isNaN(Number(raw)) ? raw : Number(raw);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return order.compare(String(a), String(b));
}

for (const box of document.querySelectorAll("figure.table")) {
  const table = box.querySelector("table");
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  headers.forEach((header, place) => header.addEventListener("click", () => {
    const descending = header.getAttribute("aria-sort") === "ascending";
    headers.forEach((one) => one.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    rows.sort((one, other) => {
      const [a, b] = [valueOf(one.cells[place]), valueOf(other.cells[place])];
      if (a === null || b === null) return (a === null) - (b === null);
      return descending ? compare(b, a) : compare(a, b);
    });
    table.tBodies[0].append(...rows);
    [...table.tBodies].slice(1).forEach((emptied) => emptied.remove());  // and the rules with them
  }));
  box.querySelectorAll(".control").forEach((one) => { one.hidden = false; });
  box.querySelector("[type=search]")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter((word) => word && word !== "-");
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) =>
        word.startsWith("-") ? !text.includes(word.slice(1)) : text.includes(word));
    }
  });
  box.querySelectorAll("[type=checkbox]").forEach((choice) =>
    choice.addEventListener("change", () => {
      for (const row of [table.tHead.rows[0], ...rows]) {
        row.cells[Number(choice.value)].classList.toggle("off", !choice.checked);
      }
    }));
}

document.addEventListener("click", async ({ target }) => {
  const command = target.dataset.command;
  if (!command) return;
  try {
    await navigator.clipboard.writeText(command);
    target.textContent = "copied";
    setTimeout(() => { target.textContent = "copy command"; }, 1500);
  } catch {
    window.prompt("Command of this row", command);
  }
});
