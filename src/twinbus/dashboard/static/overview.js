// The overview: asks once a second, and draws what it is told.

import { drawChart } from "./chart.js";
import { setUpFaults, showFaults } from "./faults.js";
import { ago, byId, clock, count, fillTable, make, moment, money, rate, span } from "./page.js";
import { drawTimeline, lasted } from "./timeline.js";

const EVERY_MS = 1000;
const CAUSES = {
  normal: "normal traffic", ping: "pings", syphon_idle: "syphon, waiting", backlog_send: "into the backlog",
  backlog_receive: "out of the backlog", home_send: "sent home", home_receive: "received at home",
};

const FOR = { up: "answers for", down: "silent for", unreadable: "not readable for", stale: "not asked for", unknown: "not known for" };

let announced = null;
let shownAt = null;

async function ask() {
  try {
    const answer = await fetch("/api/now");
    if (answer.status === 401) return silent("not let in any more: open the address that was printed");
    if (!answer.ok) return silent("the dashboard fails");
    show(await answer.json());
  } catch {
    silent("the dashboard does not answer");
  }
}

function silent(text) {
  byId("pulse").dataset.live = "false";
  byId("pulse-text").textContent = text;
  if (shownAt === null) return;
  byId("headline").dataset.tone = "unknown";
  byId("headline-text").textContent = "What is shown is old";
  byId("headline-detail").textContent = `It was so at ${clock(shownAt)}; since then ${text}.`;
}

function show(now) {
  shownAt = now.at;
  byId("pulse").dataset.live = "true";
  byId("pulse-text").textContent = `live, ${clock(now.at)}`;
  showHeadline(now);
  showNotice(now);
  showEntities(now);
  showNamespaces(now);
  showCharts(now);
  showBacklog(now);
  showOutages(now);
  showBill(now);
  showFaults(now);
  announce(now);
}

function showHeadline({ headline, backlog, rates, bill, at }) {
  byId("headline").dataset.tone = headline.tone;
  byId("headline-text").textContent = headline.text;
  byId("headline-detail").textContent = headline.detail;
  document.title = headline.tone === "calm" ? "Twinbus" : `${headline.text}: Twinbus`;
  const figures = [
    ["Waiting", count(backlog.total), backlog.oldest === null ? "no backlog" : `oldest ${ago(backlog.oldest, at)}`],
    ["Into the primary", rate(rates.arrived), "a second"],
    ["Diverted", rate(rates.diverted), "a second"],
    ["Home", rate(rates.home), "a second"],
    ["Bill", bill ? money(bill.total, bill.currency) : "–", bill ? bill.month : "no ledger"],
  ];
  byId("figures").replaceChildren(...figures.map(([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, value), " ", make("span", {}, more)))));
}

function showNotice({ ledger, failing }) {
  const words = failing.map((each) => `The dashboard's ${each.what} of ${each.entity} fails since ${clock(Date.parse(each.since) / 1000)}: ${each.error}.`);
  if (ledger.problem) words.push(ledger.problem);
  else if (!ledger.read_at) words.push("The ledger is being read.");
  else if (ledger.torn) words.push(`${ledger.torn} files of the ledger cannot be read and were passed over.`);
  byId("notice").hidden = words.length === 0;
  byId("notice").textContent = words.join(" ");
}

const stateBadge = (state) => make("span", { class: "state", "data-state": state }, make("span", { class: "sign", "aria-hidden": "true" }), state);

function showEntities({ entities, entities_in_all: all, at }) {
  byId("entities-hint").textContent = all > entities.length ? `${entities.length} of ${all}, trouble first` : "as their senders report them";
  fillTable(byId("entities"), "Entities of the primary and how they are",
    [{ name: "Entity" }, { name: "State" }, { name: "For", number: true }, { name: "Waiting", number: true },
      { name: "In queue", number: true }, { name: "Last ping" }, { name: "Senders", number: true }],
    entities.map((each) => [
      each.path, stateBadge(each.state), ago(each.since, at), count(each.waiting), count(each.active), lastPing(each.ping, at),
      senders(each, at),
    ]), "The primary has no queues or topics yet");
}

function lastPing(ping, at) {
  if (!ping) return "–";
  const words = ping.ok ? "got through" : ping.failed > 1 ? `${ping.failed} failed` : "failed";
  return `${words}, ${ago(ping.at, at)} ago`;
}

function senders({ clients, heard }, at) {
  if (!clients) return "–";
  return at - heard > 300 ? `${clients}, quiet for ${ago(heard, at)}` : count(clients);
}

function showNamespaces({ namespaces, at }) {
  byId("namespaces").replaceChildren(...namespaces.map((each) =>
    make("article", { class: "namespace", "aria-label": `${each.role} namespace` },
      make("h3", {}, each.role, " ", stateBadge(each.state)),
      make("p", { class: "host" }, each.host),
      make("dl", { class: "facts" }, ...facts(each, at).map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      each.error ? make("p", { class: "error" }, each.error) : null,
      each.faults.problem ? make("p", { class: "error" }, `its faults are not known: ${each.faults.problem}`) : null,
      each.faults.active.length ? make("p", { class: "error" }, `fault: ${each.faults.active.map((fault) => fault.kind).join(", ")}`) : null)));
}

function facts(each, at) {
  const since = [[FOR[each.state], ago(each.since, at)]];
  if (each.state !== "up") return since;
  return [...since, ["messages", count(each.messages)], ["dead letters", count(each.dead)],
    ["entities", count(each.entities)], ["connections", count(each.connections)]];
}

function showCharts({ charts }) {
  drawChart(byId("rates"), {
    title: "Messages a second", times: charts.times, whole: false, series: [
      { name: "into the primary", kind: "one", points: charts.arrived },
      { name: "diverted", kind: "two", points: charts.diverted },
      { name: "home", kind: "three", points: charts.home },
    ],
  });
  drawChart(byId("depth"), {
    title: "Messages in the backlog", times: charts.times, whole: true,
    series: [{ name: "waiting", kind: "two", filled: true, points: charts.backlog }],
  });
}

function showBacklog({ backlog, at }) {
  const rows = backlog.destinations.map((each) => [each.destination, count(each.messages), ago(each.oldest, at)]);
  if (backlog.untold) rows.push([make("i", {}, "not told of in the ledger, or not yet"), count(backlog.untold), "–"]);
  fillTable(byId("destinations"), "Messages that wait, by destination",
    [{ name: "Destination" }, { name: "Messages", number: true }, { name: "Oldest", number: true }], rows, "Nothing waits");
  fillTable(byId("queues"), "Messages that wait, by backlog queue",
    [{ name: "Backlog queue" }, { name: "Messages", number: true }, { name: "Oldest", number: true }, { name: "Set aside", number: true }],
    backlog.queues.map((each) => [each.queue, count(each.messages), ago(each.oldest, at), count(each.dead)]),
    backlog.total === null ? "Not known: see the secondary" : "No backlog queues: nothing is paired yet");
}

function showOutages({ outages, at }) {
  drawTimeline(byId("timeline"), outages, at);
  fillTable(byId("outages"), "The last outages",
    [{ name: "Entity" }, { name: "Began" }, { name: "Ended" }, { name: "Lasted", number: true }, { name: "Senders", number: true }],
    outages.map((each) => [each.entity, moment(each.began), each.ended === null ? "not yet" : moment(each.ended), lasted(each, at), count(each.clients)]),
    "No outage in the ledger");
}

function showBill({ bill }) {
  const place = byId("bill");
  if (!bill) {
    byId("bill-hint").textContent = "";
    place.replaceChildren(make("p", { class: "empty" }, "There is no ledger to make a bill of"));
    return;
  }
  byId("bill-hint").textContent = `${bill.month}, ${bill.tier} tier, as far as the ledger tells`;
  const table = make("table");
  const causes = Object.entries(bill.by_cause);
  fillTable(table, "Operations and cost, by cause",
    [{ name: "Cause" }, { name: "Operations", number: true }, { name: "Cost", number: true }],
    [...causes.map(([cause, of]) => [CAUSES[cause] ?? cause, count(of.units), money(of.cost, bill.currency)]),
      ["base of the month", "", money(bill.base, bill.currency)]], "No operations yet");
  table.append(make("tfoot", {}, make("tr", {}, make("th", { scope: "row" }, "Total"),
    make("td", { class: "number" }, count(bill.operations)), make("td", { class: "number" }, money(bill.total, bill.currency)))));
  place.replaceChildren(table);
}

/** Only what changed is spoken, and not every second. */
function announce({ headline, entities }) {
  const words = [headline.text, ...entities.filter((each) => !["healthy", "no report"].includes(each.state)).map((each) => `${each.path} is ${each.state}`)].join(". ");
  if (announced !== null && words !== announced) byId("announcer").textContent = words;
  announced = words;
}

byId("pulse").hidden = false;
setUpFaults(show);
ask();
setInterval(() => document.hidden || ask(), EVERY_MS);
document.addEventListener("visibilitychange", () => document.hidden || ask());
