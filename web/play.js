// The game of the page without Python. It stands in for the server of
// `python -m trainer.watch --web`: viewer.js sends it commands and shows its messages,
// and it plays as trainer/film/shared_game.py does. core.js has console and networks.
"use strict";
{
const FRAMES_PER_SECOND = 60.0988;
const FRAMES_BETWEEN_MOMENTS = 30, MOST_MOMENTS = 240;
const AFTERMATH_FRAMES = 100, STILL_FRAMES = 50;
const MOST_ROM_BYTES = 16 << 20;

// SHA-1 of a ROM with the usual header, as in mario_envpool/rom.py.
const REVISIONS = {
  ab30029efec6ccfc5d65dfda7fbc6e6489a80805: "European revision",
  "4bf894b301f339bce306af4813923a9900d034d1": "European revision, changed",
  "63a520bf1a2911d7f3c343cbda42c1969e0ae184": "European revision, other tiles",
  b0e9b156a51017c33a6b76708fc71395f8d32b15: "World revision, other tiles",
  ea343f4e445a9050d4b4fbac2c77d0693b1d0922: "World revision",
};
const ROM_HEADER = [0x4e, 0x45, 0x53, 0x1a, 2, 1, 1, 0];
const ROM_BYTES = 16 + (32 + 8) * 1024;

const LEVELS = [...Array(32).keys()].map((i) => `${(i >> 2) + 1}-${(i & 3) + 1}`);
const BITS = { A: 1, B: 2, select: 4, start: 8, up: 16, down: 32, left: 64, right: 128 };
const SHOWN = ["left", "right", "up", "down", "select", "start", "A", "B"];
const COMPLEX = ["NOOP", "right", "right+A", "right+B", "right+A+B", "A", "left", "left+A",
                 "left+B", "left+A+B", "down", "up"];
const ACTIONS = { right_only: 5, simple: 7, complex: 12 };

// Kernels and strides of the networks that see pictures (trainer/models/encoders.py).
const CNN = { "cnn-72k": [4, 4, 3, 2], "cnn-157k": [8, 6, 3, 2], "cnn-345k": [8, 4, 4, 2] };
const OBS_TYPES = { pixels: "gray", tiles: "tiles+motion", "tiles+world": "tiles+motion_world" };
const TILE_SCALES = [32, 32, 24, 48, 4];  // divisors of the numbers of a thing

const element = (id) => document.getElementById(id);
const buttonNames = (byte) =>
  SHOWN.filter((name) => byte & BITS[name]).join(" ") || "none";

// ---- Files: a ROM, a policy ----

async function sha1(bytes) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-1", bytes));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/// The image of a ROM with the usual header, and its SHA-1; throws what is wrong with it.
async function readRom(name, bytes) {
  if (!globalThis.crypto?.subtle) {
    throw Error("this browser checks hashes on https and localhost only: open the page there");
  }
  for (const offset of [16, 528, 0]) {
    const image = new Uint8Array(ROM_BYTES);
    image.set(ROM_HEADER);
    image.set(bytes.subarray(offset, offset + ROM_BYTES - 16), 16);
    const hash = await sha1(image);
    if (hash in REVISIONS) return { image, hash };
  }
  const begins = String.fromCharCode(...bytes.subarray(0, 4));
  if (begins.startsWith("PK") || begins.startsWith("\x1f\x8b")) {
    throw Error(`${name} is packed: unpack it, and open the .nes file in it`);
  }
  if (begins !== "NES\x1a") {
    throw Error(`${name} is no ROM file of a NES: open a .nes file of Super Mario Bros.`);
  }
  const declared = 16 + (bytes[6] & 4 ? 512 : 0) + bytes[4] * 16384 + bytes[5] * 8192;
  if (bytes.length < declared) {
    throw Error(`${name} is cut off: it has ${bytes.length} bytes and declares ${declared}`);
  }
  throw Error(`${name} is another game, or a changed one: this page knows Super Mario Bros. ` +
              `of the European and the World revision (SHA-1 ${await sha1(bytes)})`);
}

function fromHalf(half) {
  const exponent = half >> 10 & 31, fraction = half & 1023, sign = half >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/// A policy's file (trainer/models/released.py): its facts, and weights by name.
function readPolicy(name, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const damaged = `${name} is damaged, or no policy's file`;
  const weights = {};
  let facts, format;
  try {
    const size = Number(view.getBigUint64(0, true)), first = 8 + size;
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, first)));
    ({ format, policy: facts } = header.__metadata__ ?? {});
    delete header.__metadata__;
    if (format === "mario-envpool policy 2") {
      facts = JSON.parse(facts);
      for (const [key, { dtype, shape, data_offsets: [from] }] of Object.entries(header)) {
        const count = shape.reduce((product, side) => product * side, 1);
        const read = dtype === "F16" ? (i) => fromHalf(view.getUint16(first + from + 2 * i, true))
          : dtype === "I8" ? (i) => view.getInt8(first + from + i) : () => NaN;
        weights[key] = { shape, values: Float32Array.from({ length: count }, (_, i) => read(i)) };
      }
    }
  } catch {
    throw Error(damaged);
  }
  if (format !== "mario-envpool policy 2") {
    throw Error(`${name} is no policy of this trainer: python -m trainer.publish RUN ` +
                "--to FOLDER writes one");
  }
  for (const [key, { values: scales }] of Object.entries(weights)) {
    if (!key.endsWith(".scales")) continue;
    const { values } = weights[key.slice(0, -".scales".length)] ?? { values: [] };
    const columns = values.length / scales.length;
    values.forEach((value, i) => { values[i] = value * scales[Math.floor(i / columns)]; });
  }
  if (Object.values(weights).some(({ values }) => values.some((x) => !isFinite(x)))) {
    throw Error(damaged);
  }
  try {
    return { name, ...facts, ...networkOf(name, facts, weights), actions: actionsOf(facts.env) };
  } catch (error) {
    throw error instanceof TypeError ? Error(damaged) : error;  // facts are missing
  }
}

function actionsOf(env) {
  const names = env.custom_actions.length ? env.custom_actions
    : COMPLEX.slice(0, ACTIONS[env.action_set]);
  return names.map((name) =>
    name.split("+").reduce((byte, button) => byte | (BITS[button] ?? 0), 0));
}

/// Shape and weights as core.cc takes them; throws if the page cannot run the network.
function networkOf(name, { env, model }, weights) {
  const tiles = model.name === "tiles", plan = tiles ? [3, 2, 3, 2] : CNN[model.name];
  const problem = !/^SuperMarioBros-/.test(env.task) ? `the task ${env.task}`
    : !plan ? `the network ${model.name}`
    : model.memory ? "a memory"
    : model.layer_norm ? "layer normalisation"
    : model.noisy ? "noisy heads"
    : env.timing !== "console" ? `timing ${env.timing}`
    : !Object.hasOwn(OBS_TYPES, env.obs) || tiles !== (env.obs !== "pixels") ? `observations of ${env.obs}`
    : tiles && env.stack_num !== 1 ? `${env.stack_num} frames of tiles` : "";
  if (problem) {
    throw Error(`${name} has ${problem}, which this page cannot run: watch it with ` +
                "python -m trainer.watch --web --policy FILE");
  }
  const list = [];
  // Takes a weight of this shape, and the bias of its layer; returns the number of outputs.
  const take = (key, ...shape) => {
    const { shape: found, values } = weights[key] ?? { shape: [] };
    if (found.length !== shape.length || shape.some((side, i) => side && side !== found[i])) {
      throw Error(`${name} is damaged: ${key} is missing or has another shape`);
    }
    list.push(values);
    if (key.endsWith(".weight") && !key.includes("codes")) {
      take(key.replace(/weight$/, "bias"), found[0]);
    }
    return found[0];
  };
  const [kernel1, stride1, kernel2, stride2] = plan;
  const height = env.img_height || 84, width = env.img_width || 84;
  const windows = (side) =>
    Math.floor((Math.floor((side - kernel1) / stride1) + 1 - kernel2) / stride2) + 1;
  const [first, second, last] = tiles
    ? ["encoder.0.cells.0", "encoder.0.cells.2", "encoder.0.join"]
    : ["encoder.0", "encoder.2", "encoder.5"];
  if (tiles) {
    take("encoder.0.codes.weight", 32, 8);
    list.push(Float32Array.from(TILE_SCALES, (divisor) => 1 / divisor));
  } else {
    list.push([], []);
  }
  const channels1 = take(`${first}.weight`, 0, tiles ? 8 : env.stack_num, kernel1, kernel1);
  const channels2 = take(`${second}.weight`, 0, channels1, kernel2, tiles ? 4 : kernel2);
  const inputs = channels2 * (tiles ? 9 : windows(height) * windows(width));
  const features = take(`${last}.weight`, 0, inputs + (tiles ? 8 * 13 + 288 : 0));
  const actions = take("head.policy.weight", actionsOf(env).length, features);
  const critic = model.popart ? "head.value.layer.weight" : "head.value.weight";
  const outputs = take(critic, model.value_heads, features);
  if (model.popart) {
    take("head.value.mean", outputs);
    take("head.value.std", outputs);
  } else {
    list.push(new Float32Array(outputs), new Float32Array(outputs).fill(1));
  }
  const shape = [Number(tiles), env.stack_num, height, width, kernel1, stride1, channels1,
                 kernel2, stride2, channels2, features, actions, outputs];
  return { shape, weights: list };
}

// ---- The game ----

class LocalGame {
  readyState = 1;  // as that of an open WebSocket
  onmessage = () => {};
  core = null;
  policies = new Map();  // by name; those of files and those that were loaded
  rom = null;
  chosen = "";           // a level; "": all in turn
  level = "1-1";
  player = null;         // 1 while a person plays
  paused = false;
  speed = 1;
  ready = false;         // whether an episode goes on
  stepping = 0;          // frames to play although paused
  pad = 0;
  turn = 0;              // counts calls of `begin`, which waits for files
  due = 0;
  last = 0;

  constructor() {
    this.loading = makeCore().then((core) => { this.core = core; }, () => {
      throw Error("this browser cannot run the page, which needs WebAssembly with SIMD: " +
                  "take Chromium 97, Firefox 102 or Safari 16.4, or a later one");
    });
    requestAnimationFrame((now) => this.tick(now));
  }

  // -- Files --

  async open(file) {
    this.say("");
    try {
      if (file.size > MOST_ROM_BYTES) {
        throw Error(`${file.name} is too large for a ROM or a policy: it has ` +
                    `${Math.round(file.size / 1e6)} MB, and the limit is 16`);
      }
      const bytes = new Uint8Array(await file.arrayBuffer());
      if (!bytes.length) throw Error(`${file.name} is empty`);
      if (file.name.toLowerCase().endsWith(".safetensors")) {
        this.policies.set(file.name, readPolicy(file.name, bytes));
        const choice = element("choice");
        if (![...choice.options].some(({ value }) => value === file.name)) {
          choice.add(new Option(file.name, file.name));
        }
        choice.value = file.name;
        this.made = "";
      } else {
        const rom = await readRom(file.name, bytes);
        await this.loading;
        this.rom = rom;
        this.made = "";
        element("open").classList.remove("main");
      }
      if (this.rom) await this.begin(this.level);
    } catch (error) {
      this.say(error.message);
    }
  }

  /// The policy that the page has chosen for a level; null without one.
  async policyFor(level) {
    const choice = element("choice").value;
    if (!choice) return null;
    const name = choice === "own" ? level : choice;
    try {
      if (!this.policies.has(name)) this.policies.set(name, await this.fetched(name));
      const policy = this.policies.get(name);
      if (policy.rom_sha1 && policy.rom_sha1 !== this.rom.hash) {
        throw Error(`${policy.name} is a policy for another ROM (` +
          `${REVISIONS[policy.rom_sha1] ?? policy.rom_sha1}); yours is the ` +
          `${REVISIONS[this.rom.hash]}: play it yourself`);
      }
      return policy;
    } catch (error) {
      this.say(error.message);
      return null;
    }
  }

  async fetched(name) {
    const file = `policies/${name}.safetensors`;
    const how = location.protocol === "file:"
      ? "serve the folder (python -m http.server), or open the policy's file" : "reload the page";
    const response = await fetch(file).catch(() => ({ ok: false, status: "no answer" }));
    if (!response.ok) throw Error(`${file} cannot be loaded (${response.status}): ${how}`);
    return readPolicy(file, new Uint8Array(await response.arrayBuffer()));
  }

  say(text) { element("message").textContent = text; }

  // -- Episodes --

  /// Begins an episode; says why if there can be none.
  begin(level) {
    return this.start(level).catch((error) => {
      // What is not an Error is from core.cc, which refuses options.
      this.say(error instanceof Error ? error.message
        : `${this.policy.name} has options that are not possible: choose another policy`);
    });
  }

  async start(level) {
    const turn = ++this.turn;
    this.ready = false;
    this.level = level;
    const policy = await this.policyFor(level);
    if (turn !== this.turn) return;  // another level has been chosen meanwhile
    this.policy = policy;
    if (this.made !== `${level} ${policy?.name}`) this.make(level, policy);
    this.skip = policy?.env.frame_skip ?? 1;
    this.core._reset(Math.random() * 2 ** 32);
    this.look();
    const seen = this.observe();
    this.stack = Array(policy?.env.stack_num ?? 1).fill(seen);
    Object.assign(this, { frame: 0, total: 0, alone: 0, stalled: 0, ending: "", after: 0 });
    this.best = this.progress();
    this.pressed = 0;
    this.ready = true;
    this.decide();
    this.publish();
  }

  /// Makes the game of a level with the options of a policy, and the policy's network.
  make(level, policy) {
    const { core, rom } = this;
    this.made = "";  // what follows may refuse the options
    const at = core._malloc(rom.image.length);
    core.HEAPU8.set(rom.image, at);
    core._insert_rom(at, rom.image.length);
    core._free(at);
    const options = policy ? { ...policy.env } : { noop_max: 0 };
    if (policy) {
      options.obs_type = OBS_TYPES[options.obs];
      options.img_height ||= 84;
      options.img_width ||= 84;
      options.reward_step /= options.frame_skip;  // as the rewards of frames are summed
      options.repeat_action_probability = options.rng_frames_max = options.stall_steps = 0;
      this.makeNetwork(policy);
    } else {
      options.obs_type = "ram";  // for which nothing is drawn
    }
    options.stages = level;
    for (const [name, value] of Object.entries(options)) {
      if (typeof value === "object") continue;  // lists, of actions and levels
      core.ccall("set_option", "number", ["string", "string"], [name, String(value)]);
    }
    core._make_game();
    this.made = `${level} ${policy?.name}`;
    this.moments = [];
    this.clock = 0;
  }

  makeNetwork({ name, shape, weights, env }) {
    const { core } = this, sizes = weights.map((values) => values.length);
    const ints = core._malloc(4 * (shape.length + sizes.length));
    core.HEAP32.set([...shape, ...sizes], ints / 4);
    let at = core._make_network(ints, ints + 4 * shape.length, sizes.length) / 4;
    core._free(ints);
    if (!at) throw Error(`${name} has widths that this page cannot run: multiples of 16 can`);
    for (const values of weights) {
      core.HEAPF32.set(values, at);
      at += values.length;
    }
    core._free(this.input);
    this.input = core._malloc(env.obs !== "pixels" ? 256 : shape[1] * shape[2] * shape[3]);
  }

  observe() {
    const at = this.core._observe();
    return this.core.HEAPU8.slice(at, at + this.core._observation_bytes());
  }

  /// Reads what the core knows of the game.
  look() {
    const at = this.core._read_facts() / 8;
    const [over, reward, flag, world, stage, x, room, best] =
      this.core.HEAPF64.subarray(at, at + 8);
    this.facts = { over: Boolean(over), reward, flag, level: `${world}-${stage}`, x, room, best };
  }

  progress() { return `${this.facts.room} ${this.facts.best}`; }

  /// Takes a snapshot, then lets the policy decide on the current observation.
  decide() {
    const { core, moments, policy } = this;
    if (!moments.length || this.clock - moments.at(-1).clock >= FRAMES_BETWEEN_MOMENTS) {
      const { clock, stack, frame, total, alone, stalled, best } = this, at = core._take_snapshot();
      const blob = core.HEAPU8.slice(at, at + core._snapshot_bytes());
      moments.push({ blob, saved: { clock, stack, frame, total, alone, stalled, best }, clock });
      if (moments.length > MOST_MOMENTS) moments.shift();
    }
    this.decision = null;
    if (!policy) return;
    this.stack.forEach((seen, i) => core.HEAPU8.set(seen, this.input + i * seen.length));
    const levels = policy.env.levels, one = policy.model.value_heads === 1;
    const head = one ? 0 : levels.indexOf(this.facts.level);
    const at = core._decide(this.input, Math.max(0, head)) / 4;
    const [value, ...logits] = core.HEAPF32.subarray(at, at + 1 + policy.actions.length);
    const most = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - most));
    const sum = powers.reduce((a, b) => a + b);
    const probabilities = powers.map((power) => power / sum);
    let action = logits.indexOf(most);
    if (!element("greedy").checked) {
      let left = Math.random();
      action = probabilities.findIndex((p) => (left -= p) < 0);
      if (action < 0) action = logits.indexOf(most);  // sums are rounded
    }
    this.decision = { action, probabilities, value: head < 0 ? null : value };
  }

  /// Plays one frame, also of the fall or the flag after the end.
  advance(draw) {
    this.stepping = Math.max(0, this.stepping - 1);
    if (this.ending) return this.playAfterwards(draw);
    if (this.player !== null) this.pressed = this.pad;
    else if (this.decision) this.pressed = this.policy.actions[this.decision.action];
    this.core._run_frame(this.pressed, draw);
    this.look();
    const decides = ++this.frame % this.skip === 0;
    ++this.clock;
    this.total += this.facts.reward;
    if (decides) this.stack = [...this.stack.slice(1), this.observe()];
    this.ending = this.facts.over ? (this.facts.flag ? "cleared" : "died") : this.limit();
    if (decides && !this.ending) this.decide();
  }

  playAfterwards(draw) {
    const { over } = this.facts;
    if (over && this.after < AFTERMATH_FRAMES) {
      this.core._run_frame(0, draw);
      this.look();
      ++this.after;
    } else if (++this.after > AFTERMATH_FRAMES + STILL_FRAMES) {
      const next = LEVELS[(LEVELS.indexOf(this.level) + 1) % LEVELS.length];
      const goes = this.ending === "cleared" && (this.player !== null || !this.chosen);
      if (goes && this.chosen) this.chosen = next;
      this.begin(goes ? next : this.level);
    } else if (!over) {
      this.after = Math.max(this.after, AFTERMATH_FRAMES);
    }
  }

  /// Whether a limit of the policy's run ends the episode; people have none.
  limit() {
    const moved = this.progress() !== this.best;
    this.best = this.progress();
    if (this.player !== null || !this.policy) {
      this.alone = this.stalled = 0;
      return "";
    }
    const { stall_steps: most, max_episode_steps: longest } = this.policy.env;
    this.stalled = moved ? 0 : this.stalled + 1;
    const stops = most && this.stalled >= most * this.skip;
    return stops || ++this.alone >= longest * this.skip ? "stopped" : "";
  }

  rewind(seconds) {
    const { core, moments } = this, until = this.clock - seconds * FRAMES_PER_SECOND;
    while (moments.length > 1 && moments.at(-1).clock > until) moments.pop();
    const { blob, saved } = moments.at(-1);
    core.HEAPU8.set(blob, core._take_snapshot());
    core._restore_snapshot();
    Object.assign(this, saved, { ending: "", after: 0, pressed: 0, stepping: 0 });
    this.look();
    this.decide();
  }

  // -- Time --

  standsStill() {
    if (!this.policy && this.player === null) return true;
    return this.paused && !this.stepping;
  }

  tick(now) {
    requestAnimationFrame((next) => this.tick(next));
    // A hidden page gets no ticks: the game waits, and does not catch up.
    const passed = Math.min(now - this.last, 100);
    this.last = now;
    if (!this.ready || this.standsStill()) {
      this.due = 0;
      return;
    }
    this.due += passed / 1000 * FRAMES_PER_SECOND * this.speed;
    const count = this.stepping || Math.floor(this.due);
    this.due = this.stepping ? 0 : this.due - count;
    try {
      for (let i = 1; i <= count && this.ready; ++i) this.advance(i === count);
      if (count && this.ready) this.publish();
    } catch (error) {
      this.ready = false;
      this.say(`the game has stopped (${error.message ?? error}): press Restart`);
    }
  }

  // -- What viewer.js sends and gets --

  send(text) {
    const { do: name, value } = JSON.parse(text);
    if (name === "buttons") this.pad = value;
    if (this.rom && name === "restart") this.begin(this.level);
    if (this.rom && name === "level") {
      this.say("");
      this.chosen = value;
      this.begin(value || this.level);
    }
    if (!this.ready) return;
    if (name === "take") [this.player, this.pad] = [1, 0];
    if (name === "give") this.player = null;
    if (name === "pause") [this.paused, this.stepping] = [value, 0];
    if (name === "speed") this.speed = value;
    if (name === "rewind") this.rewind(value);
    if (name === "step") {
      this.paused = true;
      const goesOn = this.player === null && !this.ending;
      this.stepping = goesOn ? this.skip - this.frame % this.skip : 1;
    }
    this.publish();
  }

  publish() {
    const { core, decision, facts, policy } = this;
    const history = (this.clock - this.moments[0].clock) / FRAMES_PER_SECOND;
    this.onmessage({ data: JSON.stringify({
      you: 1, viewers: 1, player: this.player, paused: this.paused, speed: this.speed,
      levels: policy ? ["", ...LEVELS] : LEVELS,
      chosen: policy ? this.chosen : this.level, history, frame_skip: this.skip,
      level: facts.level, ending: this.ending, buttons: this.pressed, x: facts.x,
      caption: policy ? `trained ${policy.steps.toLocaleString("en")} steps` : "no policy",
      total: this.total, step: Math.floor(this.frame / this.skip),
      names: policy?.actions.map(buttonNames) ?? [], action: decision?.action ?? null,
      value: decision?.value ?? null,
      probabilities: decision?.probabilities ?? null,
    }) });
    const at = core._picture(), pixels = new Uint8ClampedArray(4 * 256 * 240);
    pixels.set(core.HEAPU8.subarray(at, at + pixels.length));
    this.onmessage({ data: new ImageData(pixels, 256, 240) });
  }
}

const game = window.localGame = new LocalGame();

element("notice").textContent = "Open your own ROM file of Super Mario Bros. to begin.";
element("level").dataset.all = "all in turn";
element("open").onclick = () => element("file").click();
element("file").onchange = ({ target }) => {
  if (target.files.length) game.open(target.files[0]);
  target.value = "";  // so that the same file can be opened again
};
element("choice").onchange = ({ target }) => {
  game.say("");
  if (game.rom) game.begin(game.level);
  target.blur();
};
element("greedy").onchange = ({ target }) => target.blur();
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dragging", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) game.open(event.dataTransfer.files[0]);
  });
}
}
