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
  const UNITS = {
    "": 1, "%": 0.01, k: 1e3, m: 1e6, g: 1e9,
    s: 1, ms: 1e-3, "µs": 1e-6, us: 1e-6, min: 60, h: 3600,
    b: 1, kb: 1e3, mb: 1e6, gb: 1e9, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40,
  };
  const TESTS = {
    ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "!=": (a, b) => a !== b,
    ">": (a, b) => a > b, "<": (a, b) => a < b, "=": (a, b) => a === b,
  };
  const SIGN = />=|<=|!=|==?|>|</.source;
  const AROUND = new RegExp(`\\s*(${SIGN})\\s*`, "g");
  const COMPARISON = new RegExp(`^([^<>=!]+)(${SIGN})(.*)$`);
  const UNIT_APART = new RegExp(
    `([<>=]-?[\\d.,]+)\\s+(?=(?:${Object.keys(UNITS).filter(Boolean).join("|")})(?:\\s|$))`, "g");
  const plain = (text) => text.toLowerCase().replace(/[\s_-]+/g, "");

  /** What sorting and comparing go by: a number, a text, or null where there is nothing. */
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

    filter() {
      const problems = [];
      // "batch >= 64" and "eff > 80 %" are one word each.
      const words = this.state.filter.toLowerCase().trim()
        .replace(AROUND, "$1").replace(UNIT_APART, "$1").split(/\s+/).filter(Boolean);
      const tests = words.map((word) => this.test(word, problems));
      let shown = 0;
      for (const row of this.rows) {
        row.hidden = !tests.every((test) => test(row));
        shown += !row.hidden;
      }
      const all = this.rows.length;
      const rows = all === 1 ? "1 row" : `${all.toLocaleString("en")} rows`;
      const count = shown === all ? rows : `${shown.toLocaleString("en")} of ${rows}`;
      this.box.querySelector(".count").textContent = [count, ...problems].join("; ");
      this.remember();
    }

    /** Tells of a row whether a word of the filter keeps it. */
    test(word, problems) {
      const parts = COMPARISON.exec(word);
      if (parts === null) {
        const without = word.length > 1 && word.startsWith("-");
        const wanted = without ? word.slice(1) : word;
        return (row) => this.words(row).includes(wanted) !== without;
      }
      const [, name, typed, wanted] = parts;
      const sign = typed === "==" ? "=" : typed;
      const place = this.place(plain(name));
      if (place < 0) problems.push(`no column “${name}”`);
      if (place < 0 || wanted === "") return () => true;
      const number = this.number(wanted, place);
      const isNumber = (row) => typeof valueOf(row.cells[place]) === "number";
      if (Number.isNaN(number) && this.rows.some(isNumber)) {
        problems.push(`“${wanted}” is no number`);
        return () => true;
      }
      return (row) => {
        const value = valueOf(row.cells[place]);
        if (value === null) return false;
        if (typeof value === "string") return TESTS[sign](value.toLowerCase(), wanted);
        const same = sign.endsWith("=") && this.shows(row.cells[place], number, place);
        return same ? sign !== "!=" : TESTS[sign](value, number);
      };
    }

    words(row) {
      row.words ??= [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase();
      return row.words;
    }

    /** The column that is called so, or else the first whose name starts so. */
    place(name) {
      const names = this.headers.map((header) =>
        [header.textContent, header.dataset.key].map(plain));
      const exact = names.findIndex((both) => both.includes(name));
      if (exact >= 0) return exact;
      return names.findIndex((both) => both.some((one) => one.startsWith(name)));
    }

    /** In the unit that cells are sorted by; without one, as many per cent as the column shows. */
    number(text, place) {
      const parts = /^(-?[\d.,]+(?:e-?\d+)?)\s*([a-zµ%]*)$/.exec(text);
      if (parts === null || !(parts[2] in UNITS)) return NaN;
      const shows = (row) => row.cells[place].textContent.endsWith("%");
      const unit = parts[2] === "" && this.rows.some(shows) ? "%" : parts[2];
      return Number(parts[1].replaceAll(",", "")) * UNITS[unit];
    }

    /** Whether the digits that a cell shows are this number: its value has more of them. */
    shows(cell, number, place) {
      const parts = /^(-?[\d.,]+)(?:\([^)]*\)| ± [\d.,]+)?\s*([a-zµ%]*)$/i.exec(cell.textContent);
      return parts !== null && this.number((parts[1] + parts[2]).toLowerCase(), place) === number;
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
