// What a person would see, measured in the page itself and sent to the page around it.
addEventListener("load", async () => {
  const numbers = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, alpha = 1] = numbers(getComputedStyle(at).backgroundColor);
      if (alpha > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const contrast = (node) => {
    const style = getComputedStyle(node);
    const [one, other] = [light(numbers(node instanceof SVGElement ? style.fill : style.color)), light(behind(node))];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  };
  const size = (node) => { const { a, b } = node.getScreenCTM(); return Math.hypot(a, b) * parseFloat(getComputedStyle(node).fontSize); };
  const box = (node) => { const { width, height } = node.getBoundingClientRect(); return [width, height]; };
  const own = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  const shown = (node) => node.checkVisibility() && !node.closest(".unseen, .skip");
  const root = document.documentElement;
  const measured = { width: innerWidth, client: root.clientWidth, scroll: [root.scrollWidth] };
  measured.visible = [...document.querySelectorAll("section")].map((one) => [one.className, ...box(one)]);
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  measured.scroll.push(root.scrollWidth);
  measured.headings = [...document.querySelectorAll("h1, h2, h3, h4, h5")].map((one) => [one.textContent, ...box(one)]);
  measured.pictures = [...document.querySelectorAll("svg, img")].map((one) => [one.tagName, ...box(one)]);
  measured.letters = [...document.querySelectorAll("svg text")].map((one) => [one.textContent, size(one)]);
  const texts = [...document.querySelectorAll("body *")].filter((node) => own(node) && shown(node) && !/SCRIPT|STYLE/.test(node.tagName));
  measured.contrasts = texts.map((node) => [contrast(node), node.tagName, node.textContent.trim().slice(0, 40)]).sort((a, b) => a[0] - b[0]).slice(0, 5);
  measured.texts = texts.length;
  const outside = [...document.querySelectorAll("main *")].filter((node) => shown(node) && !node.closest(".scroll, pre, svg"));
  measured.cut = outside.filter((node) => node.getBoundingClientRect().right > root.clientWidth + 1).map((node) => node.outerHTML.slice(0, 80));
  const page = () => getComputedStyle(document.body).backgroundColor, before = page(), button = document.getElementById("theme");
  measured.page = light(numbers(before));
  button.click();
  measured.toggled = [before, page(), root.dataset.theme, button.textContent];
  localStorage.clear();
  document.querySelector(".copy").click();
  await new Promise((wait) => setTimeout(wait, 50));
  measured.copied = document.querySelector(".copy").textContent;
  measured.errors = window.wrong;
  parent.postMessage(JSON.stringify(measured), "*");
});
