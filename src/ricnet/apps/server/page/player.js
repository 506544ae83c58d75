// Where in a thought we are. Playing goes on to where the model stopped, and from there, if asked again, to the end.

const PACE = 420; // milliseconds a step

export class Player {
  constructor(show) {
    this.show = show;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.step = 0;
    this.timer = null;
  }

  get playing() {
    return this.timer !== null;
  }

  open(thought) {
    this.pause();
    this.thought = thought;
    if (this.still.matches || thought.last === 1) {
      this.go(thought.halt);
    } else {
      this.go(0);
      this.play();
    }
  }

  go(step) {
    this.step = Math.min(Math.max(step, 0), this.thought.last);
    this.show(this);
  }

  play() {
    if (this.step === this.thought.last) this.step = 0;
    this.until = this.step < this.thought.halt ? this.thought.halt : this.thought.last;
    this.timer = setInterval(() => this.advance(), PACE);
    this.show(this);
  }

  advance() {
    if (this.step + 1 >= this.until) clearInterval(this.timer), (this.timer = null);
    this.go(this.step + 1);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.thought) this.show(this);
  }

  toggle() {
    this.playing ? this.pause() : this.play();
  }

  jump(step) {
    this.pause();
    this.go(step);
  }
}
