// Tables that are sorted, filtered and copied; columns that are chosen. What is shown is copied.
"use strict";
const dpbench = {
  copy(text, button) {
    button.dataset.label ??= button.textContent;
    const say = (words) => {
      button.textContent = words;
      setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
    };
    navigator.clipboard.writeText(text).then(() => say("Copied"), () => say("Not allowed"));
  },
};

(() => {
  const order = new Intl.Collator("en", { numeric: true });
  /** What sorting goes by: a number, a text, or null where there is nothing. */
  function valueOf(cell) {
    const raw = cell.dataset.v ?? cell.textContent;
    if (raw === "") return null;
    const number = Number(raw);
    return Number.isNaN(number) ? raw : number;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return order.compare(String(a), String(b));
  }

  class DataTable {
    constructor(box) {
      this.box = box;
      this.table = box.querySelector("table");
      this.headers = [...this.table.tHead.rows[0].cells];
      this.body = this.table.tBodies[0];
      this.rows = [...this.body.rows];
      this.input = box.querySelector(".filter input");
      this.choices = [...box.querySelectorAll(".chooser input")];
      this.memory = `dpbench ${location.pathname} ${box.dataset.table}`;
      this.state = { key: null, descending: false, filter: "", columns: this.chosen() };
      this.rules = document.head.appendChild(document.createElement("style"));
      this.offer();
      this.recall();
    }

    chosen() {
      return this.choices.filter((choice) => choice.checked).map((choice) => choice.value);
    }

    offer() {
      this.headers.forEach((header) => {
        const button = document.createElement("button");
        button.type = "button";
        button.append(...header.childNodes);
        button.addEventListener("click", () => this.turn(header));
        header.append(button);
      });
      this.input?.addEventListener("input", () => {
        this.state.filter = this.input.value;
        this.filter();
      });
      for (const choice of this.choices) {
        choice.addEventListener("change", () => {
          this.state.columns = this.chosen();
          this.choose();
        });
      }
      for (const button of this.box.querySelectorAll("[data-copy]")) {
        button.addEventListener("click", () => dpbench.copy(this[button.dataset.copy](), button));
      }
      this.box.querySelector(".controls").hidden = false;
    }

    /** As it was before the page was loaded anew. */
    recall() {
      try {
        Object.assign(this.state, JSON.parse(sessionStorage.getItem(this.memory)));
      } catch { /* forbidden here, or nothing of ours */ }
      for (const choice of this.choices) {
        choice.checked = this.state.columns.includes(choice.value);
      }
      if (this.input) this.input.value = this.state.filter;
      this.choose();
      if (this.state.key !== null) this.sort();
      this.filter();
    }

    remember() {
      try {
        sessionStorage.setItem(this.memory, JSON.stringify(this.state));
      } catch { /* forbidden here */ }
    }

    /** Text starts with A, numbers with the largest; the third click gives the first order back. */
    turn(header) {
      const first = !header.classList.contains("t");
      const { key, descending } = this.state;
      if (key !== header.dataset.key) {
        Object.assign(this.state, { key: header.dataset.key, descending: first });
      } else if (descending === first) this.state.descending = !first;
      else this.state.key = null;
      this.sort();
      this.remember();
    }

    sort() {
      const { key, descending } = this.state;
      const place = this.headers.findIndex((header) => header.dataset.key === key);
      const sign = descending ? -1 : 1;
      const found = this.rows.map((row) => [place < 0 ? null : valueOf(row.cells[place]), row]);
      found.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * compare(a, b);
      });
      this.body.append(...found.map(([, row]) => row));
      this.headers.forEach((header, i) => {
        if (i === place) header.ariaSort = descending ? "descending" : "ascending";
        else header.removeAttribute("aria-sort");
      });
    }

    /** Keeps the rows that have every word, and none of those with a minus before them. */
    filter() {
      const tests = this.state.filter.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
        const without = word.length > 1 && word.startsWith("-");
        const wanted = without ? word.slice(1) : word;
        return (row) => this.words(row).includes(wanted) !== without;
      });
      let shown = 0;
      for (const row of this.rows) {
        row.hidden = !tests.every((test) => test(row));
        shown += !row.hidden;
      }
      const all = this.rows.length;
      const rows = all === 1 ? "1 row" : `${all.toLocaleString("en")} rows`;
      this.box.querySelector(".count").textContent =
        shown === all ? rows : `${shown.toLocaleString("en")} of ${rows}`;
      this.remember();
    }

    words(row) {
      row.words ??= [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase();
      return row.words;
    }

    /** One style rule hides a column: a thousand rows need not be touched. */
    choose() {
      const hidden = this.choices.flatMap((choice, i) =>
        (choice.checked ? [] : [`:nth-child(${i + 1})`]));
      this.rules.textContent = hidden.length === 0 ? "" :
        `[id="${this.table.id}"] tr > :is(${hidden.join()}) { display: none }`;
      this.remember();
    }

    /** Header and rows as they are seen. */
    seen() {
      const places = this.headers.flatMap((header, i) =>
        this.choices.length === 0 || this.choices[i].checked ? [i] : []);
      const rows = [this.table.tHead.rows[0], ...this.body.rows].filter((row) => !row.hidden);
      const lines = rows.map((row) => places.map((i) => row.cells[i].textContent.trim()));
      return { places, lines };
    }

    markdown() {
      const { places, lines } = this.seen();
      const plainly = (text) => text.replace(/[\\|<`*_[\]]/g, "\\$&").replace(/\s*\n\s*/g, " ");
      const line = (cells) => `| ${cells.join(" | ")} |\n`;
      const rule = places.map((i) => (this.headers[i].classList.contains("t") ? "---" : "---:"));
      const [names, ...rest] = lines.map((cells) => cells.map(plainly));
      return [names, rule, ...rest].map(line).join("");
    }

    csv() {
      const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
      return this.seen().lines.map((cells) => cells.map(quoted).join(",") + "\r\n").join("");
    }
  }

  for (const box of document.querySelectorAll("[data-table]")) new DataTable(box);
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll(".chooser[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.querySelector(".chooser[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });
})();
