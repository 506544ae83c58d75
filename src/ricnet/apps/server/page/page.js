// The demo page: sends an image, a text or numbers, and shows the answer step by step.

import { askImage, askNumbers, getJSON, Trouble } from "./ask.js";
import { Bars } from "./bars.js";
import { Budget } from "./budget.js";
import { Chart } from "./chart.js";
import { Form } from "./form.js";
import { Player } from "./player.js";
import { percent, steps, Thought } from "./thought.js";

const SMALL = 96; // pixels; smaller images are shown without smoothing
const SLOW = 4000; // milliseconds
const PAUSE = "M3 2h4v12H3zm6 0h4v12H9z", PLAY = "M4 2v12l10-6z", SKIP = "M2 2v12l8-6zm9 0h3v12h-3z";

const find = id => document.getElementById(id);
const bars = new Bars(find("bars"));
const player = new Player(show);
const chart = new Chart(find("chart"), step => player.jump(step));
let model, form, budget, asking, again;

// ---- asking

async function ask(send, truth = null) {
  again = () => ask(send, truth);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking, point = budget?.chosen;
  const waiting = setTimeout(() => say("Still waiting; the network or the model is slow …"), SLOW);
  complain(null);
  busy(true);
  try {
    const answer = await send({ signal, budget: point?.mean_cost });
    busy(false);
    open(new Thought(answer, model, truth, point));
  } catch (error) {
    if (error.name === "AbortError") return; // replaced by a later request
    again = null;
    busy(false);
    say("");
    find("stage").hidden = true; // it shows the answer to another input
    clearPreview();
    complain(error);
  } finally {
    clearTimeout(waiting);
  }
}

function takeFile(file, more = 0) {
  if (!file) return;
  press(null);
  preview(URL.createObjectURL(file), `Your image, ${file.name}`);
  ask(async how => askImage(fitting(file), file.name, how));
  if (more) complain(new Trouble(`Only the first of ${more + 1} files is shown.`));
}

function fitting(file) {
  const limit = model.limits.max_body_mb;
  if (file.size > 1e6 * limit) throw new Trouble(`${file.name} is larger than ${limit} MB; make it smaller.`);
  return file;
}

async function takeSample(sample, button) {
  press(button);
  if (form) {
    form.fill(sample);
    const question = form.question(); // a copy, for another request with a new budget
    return ask(how => askNumbers(question, how), sample.label);
  }
  preview(sample.image, `A test image of ${sample.label}`);
  ask(async how => askImage(await pixels(sample.image, how.signal), "sample.png", how), sample.label);
}

async function pixels(address, signal) {
  try {
    return await (await fetch(address, { signal })).blob();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Trouble("The server cannot be reached. Is it still running?");
  }
}

function preview(address, words) {
  const image = letGo();
  image.onload = () => {
    image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= SMALL);
    image.hidden = false;
  };
  image.onerror = () => (image.hidden = true); // a browser does not show every format that the model reads
  image.alt = words;
  image.src = address;
  find("seen").hidden = false;
}

function clearPreview() {
  const image = letGo();
  image.onload = image.onerror = null; // it may still be loading
  image.removeAttribute("src");
  image.alt = "";
  image.hidden = find("seen").hidden = true;
}

function letGo() {
  const image = find("preview");
  if (image.src.startsWith("blob:")) URL.revokeObjectURL(image.src);
  return image;
}

function press(button) {
  for (const other of find("samples").querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
}

// ---- saying

// Unchanged words are not set again: a screen reader would repeat them.
function say(words) {
  const parts = [words].flat();
  if (find("status").textContent === parts.map(part => part.textContent ?? part).join("")) return;
  find("status").replaceChildren(...parts);
}

function complain(error) {
  if (error && !(error instanceof Trouble)) console.error(error);
  find("trouble").hidden = !error;
  find("trouble").textContent = error instanceof Trouble ? error.message : "Something went wrong on this page; load it again.";
  if (error) find("trouble").scrollIntoView({ block: "nearest" });
}

function busy(is) {
  document.querySelector(".thinking").setAttribute("aria-busy", is);
  find("stage").classList.toggle("busy", is);
  if (is) player.thought && player.pause();
  if (is) say("Asking the model …");
}

function bold(words) {
  return Object.assign(document.createElement("b"), { textContent: words });
}

function line(name, ...content) {
  const element = document.createElement("span");
  element.className = name;
  element.append(...content);
  return element;
}

// ---- showing

function open(thought) {
  find("stage").hidden = false;
  const oneStep = thought.last === 1;
  for (const id of ["controls", "curves", "ends"]) find(id).hidden = oneStep;
  find("step").max = thought.last;
  bars.open(thought);
  if (!oneStep) {
    find("ends").replaceChildren(end(thought, thought.halt, thought.stoppedByItself() ? "Stops by itself" : "Takes every step"), end(thought, thought.last, `All ${steps(thought.last)}`));
    find("caption").replaceChildren(...caption(thought));
    chart.open(thought);
  }
  player.open(thought);
}

function end(thought, step, which) {
  const { name, share, right } = thought.said(step);
  const button = document.createElement("button");
  const verdict = right === null ? "" : right ? " · right" : ` · wrong, it is ${thought.truth}`;
  button.type = "button";
  button.className = "end";
  button.dataset.step = step;
  const sure = Object.assign(document.createElement("small"), { textContent: ` ${percent(share)}` });
  button.append(line("which", which), line("said", name, sure), line("cost", `after ${steps(step)}${thought.work(step)}${verdict}`));
  button.addEventListener("click", () => player.jump(step));
  return button;
}

// The answer is stated from the beginning, while its steps are played.
function show({ thought, step, playing, unasked }) {
  const coming = playing && step < thought.halt;
  find("bars").classList.toggle("coming", coming);
  bars.show(step);
  if (thought.last > 1) chart.show(step, coming);
  find("step").value = step;
  const where = step === 0 ? "before step 1" : `step ${step} of ${thought.last}`;
  find("step-word").textContent = where;
  const said = thought.said(step);
  find("step").setAttribute("aria-valuetext", said ? `${where}: ${said.name}, ${percent(said.share)}` : where);
  const [sign, word] = !playing ? [PLAY, "Play"] : unasked ? [SKIP, "Skip"] : [PAUSE, "Stop"];
  find("sign").setAttribute("d", sign);
  find("play-word").textContent = word;
  for (const button of find("ends").children) button.setAttribute("aria-pressed", Number(button.dataset.step) === step && !playing);
  say(playing && !coming ? "Steps after the halt …" : sentence(thought, playing ? thought.halt : step));
}

function sentence(thought, step) {
  const said = thought.said(step);
  if (!said) return "Before step 1, all classes are equally likely.";
  const sure = [bold(said.name), `, ${percent(said.share)} sure`];
  if (thought.last === 1) return ["It answers ", ...sure, ", in one step."];
  if (step < thought.halt) return [`After ${steps(step)} the answer would be `, ...sure, "."];
  if (step > thought.halt) return [`After ${steps(step)}, past the halt: `, ...sure, "."];
  return ["It answers ", ...sure, thought.stoppedByItself() ? `, and stops after ${step} of ${steps(thought.last)}${thought.work(step)}.` : `, after all ${steps(step)}.`];
}

function caption(thought) {
  const key = name => Object.assign(document.createElement("span"), { className: `key ${name}` });
  const parts = [key("first"), `${thought.classes[thought.first]}, the answer  `, key("second"), `${thought.classes[thought.second]}, its strongest rival  `];
  if (thought.classes.length > 2) parts.push(key(""), "all others. ");
  if (thought.values && thought.stoppedByItself()) parts.push(key("dot"), `It stops where the expected gain falls below ${Number(thought.threshold.toPrecision(2))}; the pale part shows the steps after that. `);
  else if (thought.values && thought.threshold === null) parts.push("It always takes every step. ");
  else if (thought.values) parts.push(`The expected gain never falls below ${Number(thought.threshold.toPrecision(2))}, so it takes every step. `);
  parts.push(key("tick"), ` on the bars: the probability after ${steps(thought.last)}.`);
  return parts;
}

// ---- setting up

function describe() {
  const parts = [`${model.name}: ${model.method} on ${model.data}, ${model.classes.length} classes`];
  if (model.test) {
    const { n, accuracy, ece, mean_steps, mean_cost } = model.test;
    parts.push(`accuracy ${percent(accuracy)} on ${n.toLocaleString("en")} test ${{ image: "images", text: "texts" }[model.input.kind] ?? "rows"}`, `calibration error ${ece.toFixed(3)}`);
    if (model.horizon > 1) parts.push(`${mean_steps.toFixed(1)} of ${steps(model.horizon)} on average`);
    if (mean_cost != null) parts.push(`${Math.round(100 * mean_cost)} % of compute`);
  }
  find("model").textContent = parts.join(" · ");
  if (model.horizon === 1) find("lead").textContent = "This classifier answers in a single step.";
}

function acceptImages() {
  const [channels, height, width] = model.input.shape;
  find("drop").hidden = false;
  const [, high, wide] = model.input.view;
  const centre = wide === width ? "" : `, of which it reads the middle ${wide} × ${high}`;
  find("seen").textContent = `Resized to ${width} × ${height} pixels${channels === 1 ? ", in grey," : ""} for the model${centre}.`;
  find("file").addEventListener("change", ({ target }) => {
    takeFile(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", ({ clipboardData }) => takeFile(clipboardData.files[0]));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, event => {
      event.preventDefault(); // else the browser opens the file
      find("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop") takeFile(event.dataTransfer.files[0], event.dataTransfer.files.length - 1);
    });
  }
}

function acceptNumbers() {
  form = new Form(find("form"), model.input, () => {
    press(null);
    ask(async how => askNumbers(form.question(), how));
  });
  find("form").hidden = false;
}

function offer(samples) {
  if (!samples.length) return;
  find("try").hidden = false;
  find("samples").classList.toggle("words", !samples[0].image);
  find("samples").append(...samples.map(offered));
}

function offered(sample) {
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-label", `${sample.label}, ${sample.kind}`);
  if (sample.image) {
    const image = Object.assign(new Image(), { src: sample.image, alt: "" });
    image.onload = () => image.classList.toggle("small", image.naturalWidth <= SMALL);
    button.append(image);
  } else button.append(sample.label);
  button.append(line("kind", sample.kind));
  button.addEventListener("click", () => takeSample(sample, button));
  const item = document.createElement("li");
  item.append(button);
  return item;
}

async function start() {
  find("play").addEventListener("click", () => player.toggle());
  find("step").addEventListener("input", ({ target }) => player.jump(Number(target.value)));
  try {
    model = await getJSON("/v1/model");
    describe();
    model.input.kind === "image" ? acceptImages() : acceptNumbers();
    if (model.budgets) budget = new Budget(find("budget"), model, () => again?.());
    const samples = await getJSON("/v1/examples");
    offer(samples);
    say(samples.length ? "" : "Choose an input.");
    const first = samples.findIndex(({ kind }) => kind === "hard");
    if (samples.length) takeSample(samples[Math.max(first, 0)], find("samples").querySelectorAll("button")[Math.max(first, 0)]);
  } catch (error) {
    complain(error);
  }
}

start();
