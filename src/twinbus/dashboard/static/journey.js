// One message's journey, by its id. The id is in the address, so that it can be passed on.

import { byId, make, moment, span } from "./page.js";

const NAMES = {
  "send normal": "Sent", "send backlog_send": "Diverted", "send home_send": "Sent home",
  "receive backlog_receive": "Taken", "complete backlog_receive": "Settled", receive: "Received", complete: "Settled",
  dead_letter: "Dead-lettered", abandon: "Abandoned", defer: "Deferred", schedule: "Scheduled", forward: "Forwarded",
};

const nameOf = ({ operation, cause, ok }) =>
  (NAMES[`${operation} ${cause}`] ?? NAMES[operation] ?? operation) + (ok ? "" : ", and failed");

function kindOf({ operation, cause, ok }) {
  if (!ok || operation === "dead_letter") return "bad";
  if (cause.startsWith("backlog")) return "away";
  return "home";
}

async function find(id) {
  byId("journey-steps").replaceChildren();
  say("Looking through the ledger.");
  try {
    const answer = await fetch(`/api/journey?id=${encodeURIComponent(id)}`);
    const told = await answer.json();
    if (!answer.ok) return say(told.error);
    show(told);
  } catch {
    say("The dashboard does not answer.");
  }
}

const say = (text) => { byId("journey-said").textContent = text; };

function show({ id, steps, looked_at: lookedAt, files }) {
  const partly = lookedAt < files ? ` Only the newest ${lookedAt} of ${files} files were gone through.` : "";
  if (!steps.length) return say(`The ledger has nothing about ${id}.${partly} What a client did is in it some 30 seconds later.`);
  const took = steps.at(-1).at - steps[0].at;
  say(`${steps.length} steps in ${took < 1 ? "less than a second" : span(took)}.${partly}`);
  byId("journey-steps").replaceChildren(...steps.map((step, index) => shown(step, steps[index - 1])));
}

function shown(step, before) {
  const later = before ? `+${(step.at - before.at).toFixed(3)} s` : "";
  return make("li", { class: "step", "data-kind": kindOf(step) },
    make("span", { class: "bead", "aria-hidden": "true" }),
    make("div", {},
      make("p", { class: "step-name" }, make("b", {}, nameOf(step)), " ", make("time", { datetime: new Date(step.at * 1000).toISOString() }, moment(step.at)), " ", make("span", { class: "later" }, later)),
      make("p", {}, step.sentence),
      make("p", { class: "hint" }, `${step.namespace}, by ${step.client}`)));
}

function readAddress() {
  const id = new URLSearchParams(location.search).get("id") ?? "";
  byId("journey-id").value = id;
  if (id) find(id);
}

byId("journey-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = byId("journey-id").value.trim();
  if (!id) return;
  history.pushState(null, "", `/journey?id=${encodeURIComponent(id)}`);
  find(id);
});
addEventListener("popstate", readAddress);
readAddress();
