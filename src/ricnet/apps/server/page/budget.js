// For a model with exits: the mean share of compute, chosen among the thresholds stored with the run. Until the user
// chooses, the server's setting.

import { percent } from "./thought.js";

export class Budget {
  constructor(place, model, changed) {
    this.points = model.budgets;
    this.own = model.budget ?? model.test?.mean_cost ?? null;
    [this.slider, this.words, this.back] = ["input", "output", "button"].map(name => place.querySelector(name));
    this.slider.max = this.points.length - 1;
    this.slider.addEventListener("input", () => this.choose(this.points[this.slider.value]));
    this.slider.addEventListener("change", changed);
    this.back.addEventListener("click", () => {
      this.choose(null);
      this.slider.focus(); // the button is hidden now
      changed();
    });
    this.choose(null);
    place.hidden = false;
  }

  choose(point) {
    this.chosen = point;
    if (!point) this.slider.value = this.nearest(this.own ?? 1);
    const share = point ? point.mean_cost : this.own;
    const spent = share === null ? "" : `${Math.round(100 * share)} % of compute on average`;
    const words = point ? [spent, `accuracy ${percent(point.accuracy)} on validation data`] : [spent, "the server's setting"];
    this.words.textContent = words.filter(Boolean).join(", ");
    this.slider.setAttribute("aria-valuetext", this.words.textContent);
    this.back.hidden = !point;
  }

  nearest(share) {
    const off = n => Math.abs(this.points[n].mean_cost - share);
    return this.points.map((_, n) => n).reduce((a, b) => (off(b) < off(a) ? b : a));
  }
}
