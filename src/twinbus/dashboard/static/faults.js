// Starting and clearing the faults of the lab, where a namespace has them enabled.

import { byId, fillTable, make, span } from "./page.js";

let latest = null;

export function setUpFaults(changed) {
  byId("fault-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    act("/api/faults", {
      namespace: form.get("namespace"),
      kind: form.get("kind"),
      entity: form.get("entity") || null,
      seconds: Number(form.get("seconds")),
    }, changed);
  });
  byId("fault-namespace").addEventListener("change", offer);
  byId("fault-kind").addEventListener("change", offer);
  byId("fault-list").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) act("/api/faults/clear", { namespace: button.dataset.namespace, id: Number(button.dataset.id) }, changed);
  });
}

async function act(path, body, changed) {
  const error = byId("fault-error");
  error.hidden = true;
  let text = "The dashboard does not answer.";
  try {
    const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const told = await answer.json();
    if (answer.ok) return changed(told);
    text = told.error;
  } catch { /* said below */ }
  error.textContent = text;
  error.hidden = false;
}

export function showFaults(now) {
  latest = now;
  const able = now.namespaces.filter((each) => each.faults.enabled);
  byId("faults-card").hidden = able.length === 0;
  if (!able.length) return;
  choose(byId("fault-namespace"), able.map((each) => [each.role, each.role]));
  offer();
  listFaults(able);
}

function offer() {
  const namespace = latest.namespaces.find((each) => each.role === byId("fault-namespace").value);
  if (!namespace) return;
  choose(byId("fault-kind"), namespace.faults.kinds.map((each) => [each.kind, each.kind]), "unreachable");
  const kind = namespace.faults.kinds.find((each) => each.kind === byId("fault-kind").value);
  byId("fault-what").textContent = kind ? kind.what.replaceAll("`", "") : "";
  const paths = namespace.role === "primary"
    ? latest.entities.map((each) => each.path)
    : latest.backlog.queues.map((each) => each.queue);
  const entities = kind?.per_entity ? paths : [];
  choose(byId("fault-entity"), [["", "the whole namespace"], ...entities.map((path) => [path, path])]);
}

/** Options as [value, text]; what was chosen stays, and a list that is the same is left alone. */
function choose(select, options, usual) {
  const before = select.value || usual;
  const same = select.options.length === options.length
    && options.every(([value], index) => select.options[index].value === value);
  if (same) return;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) select.value = before;
}

let drawn = "";

function listFaults(able) {
  const active = able.flatMap((each) => each.faults.active.map((fault) => ({ ...fault, namespace: each.role })));
  const place = byId("fault-list");
  const key = active.map((fault) => `${fault.namespace}${fault.id}`).join();
  if (key !== drawn) {  // else a button would be made anew under a finger, or lose its focus
    drawn = key;
    const table = make("table");
    fillTable(table, "Faults that are on", [{ name: "Fault" }, { name: "Of" }, { name: "Left", number: true }, { name: "End it" }],
      active.map((fault) => [fault.kind, fault.entity ?? `the ${fault.namespace}`, make("span", { "data-left": `${fault.namespace}${fault.id}` }),
        make("button", { type: "button", class: "quiet", "data-namespace": fault.namespace, "data-id": fault.id,
          "aria-label": `Clear ${fault.kind} of ${fault.entity ?? `the ${fault.namespace}`}` }, "Clear")]),
      "No fault is on");
    place.replaceChildren(make("div", { class: "scroll", role: "region", "aria-label": "Faults that are on" }, table));
  }
  for (const fault of active) {
    const left = place.querySelector(`[data-left="${fault.namespace}${fault.id}"]`);
    if (left) left.textContent = span(fault.seconds_left);
  }
}
