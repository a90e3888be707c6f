// What must hold of a page: axe's most telling rules, in our own words. Answers what is wrong.
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seen = (element) => element.checkVisibility({ visibilityProperty: true });
  const named = (element) => (element.getAttribute("aria-label")
    || (element.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("")
    || element.labels?.[0]?.textContent || element.textContent || element.title || "").trim();

  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title) wrong.push("no title");
  for (const landmark of ["main", "header", "nav", "footer"]) {
    if (all(landmark).length !== 1) wrong.push(`${all(landmark).length} of ${landmark}`);
  }
  if (all("h1").filter(seen).length !== 1) wrong.push("not one h1");
  let level = 0;
  for (const heading of all("h1,h2,h3,h4").filter(seen)) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) wrong.push(`h${next} after h${level}`);
    level = next;
  }
  for (const control of all("a[href],button,input,select,textarea,summary,[role=region],[role=img],[tabindex='0']").filter(seen)) {
    if (!named(control)) wrong.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  for (const control of all("button,input,select,nav a").filter(seen)) {
    if (control.getBoundingClientRect().height < 24) wrong.push(`small: ${control.outerHTML.slice(0, 80)}`);
  }
  for (const table of all("table").filter(seen)) {
    if (!table.caption) wrong.push(`no caption: ${table.id}`);
    if (!table.querySelector("th[scope=col]")) wrong.push(`no heads: ${table.id}`);
  }
  for (const figure of all("figure svg")) {
    if (!figure.closest("figure").querySelector("table")) wrong.push("a chart without a table");
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids.filter((each, index) => ids.indexOf(each) !== index))) wrong.push(`two of #${id}`);
  if (!all("[aria-live=polite]").length) wrong.push("nothing is announced");

  const numbers = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const light = ([red, green, blue]) => {
    const part = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  };
  const groundOf = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(element) || element.closest(".visually-hidden,.skip,script,noscript,option")) continue;
    const style = getComputedStyle(element);
    const ink = light(numbers(element instanceof SVGElement ? style.fill : style.color));
    const ground = light(groundOf(element));
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.7 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(1)}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return wrong;
}
