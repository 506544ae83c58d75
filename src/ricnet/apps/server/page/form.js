// The form for numbers or a text: a field for each column, or one for the text.

import { Trouble } from "./ask.js";

const MOST_FIELDS = 40;

export class Form {
  constructor(form, input, ask) {
    this.form = form;
    this.columns = input.columns;
    this.text = input.kind === "text";
    this.count = input.shape[0];
    this.single = !this.columns && this.count > MOST_FIELDS;
    form.append(...this.fields(), button());
    form.addEventListener("submit", event => {
      event.preventDefault();
      ask();
    });
  }

  fields() {
    if (this.text) return [labelled("A text", area(true), "all")];
    if (this.single) return [labelled(`${this.count} numbers, with commas or spaces between them`, area(), "all")];
    const columns = this.columns ?? Array.from({ length: this.count }, (_, n) => ({ name: `Feature ${n + 1}`, values: null }));
    return columns.map(({ name, values, date }) => labelled(name, values ? choice(values) : date ? day(date) : number()));
  }

  get inputs() {
    return [...this.form.querySelectorAll("input, select, textarea")];
  }

  fill(sample) {
    if (this.text) return (this.inputs[0].value = sample.text ?? "");
    const cells = sample.features ?? this.columns.map(({ name }) => sample.row[name]);
    const shown = cells.map(cell => (cell === null ? "" : typeof cell === "number" ? Number(cell.toPrecision(6)) : cell));
    if (this.single) this.inputs[0].value = shown.join(", ");
    else this.inputs.forEach((field, n) => (field.value = shown[n]));
  }

  question() {
    if (this.text) return { texts: this.inputs[0].value };
    if (this.columns) return { rows: Object.fromEntries(this.columns.map(({ name }, n) => [name, this.cell(n)])) };
    const texts = this.single ? this.inputs[0].value.split(/[\s,;]+/).filter(Boolean) : this.inputs.map(field => field.value);
    const features = texts.map(text => number_of(text));
    if (this.single && features.length !== this.count) throw new Trouble(`${features.length} numbers are given; the model reads ${this.count}.`);
    const missing = features.findIndex(Number.isNaN);
    if (missing >= 0) throw new Trouble(`Feature ${missing + 1} is not a number; fill it in.`);
    return { features };
  }

  cell(place) {
    const { name, values, date } = this.columns[place];
    const text = this.inputs[place].value.trim();
    if (values || date || text === "") return text || null;
    if (Number.isNaN(number_of(text))) throw new Trouble(`${name} is not a number; correct it, or leave it empty if it is unknown.`);
    return number_of(text);
  }
}

function number_of(text) {
  return text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
}

function labelled(name, field, kind = "") {
  const element = document.createElement("label");
  element.className = kind;
  element.append(name, field);
  return element;
}

function number() {
  return Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", autocomplete: "off" });
}

function day(example) {
  return Object.assign(number(), { inputMode: "text", placeholder: example });
}

function area(spellcheck = false) {
  return Object.assign(document.createElement("textarea"), { rows: 6, spellcheck });
}

function choice(values) {
  const field = document.createElement("select");
  field.append(new Option("unknown", ""), ...values.filter(Boolean).map(value => new Option(value, value)));
  return field;
}

function button() {
  return Object.assign(document.createElement("button"), { className: "ask", textContent: "Ask" });
}
