(function () {
  "use strict";
  var root = document.documentElement, button = document.getElementById("theme"), KEY = "bayesianize-theme";
  var wanted = window.matchMedia("(prefers-color-scheme: dark)");
  function dark() { return root.dataset.theme ? root.dataset.theme === "dark" : wanted.matches; }
  function name() { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", "Switch to " + (dark() ? "light" : "dark") + " colours"); }
  try { if (/^(light|dark)$/.test(localStorage.getItem(KEY))) root.dataset.theme = localStorage.getItem(KEY); } catch (error) { /* a page without storage */ }
  button.hidden = false;
  name();
  wanted.addEventListener("change", name);
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem(KEY, root.dataset.theme); } catch (error) { /* remembered for this visit only */ }
    name();
  });
  document.querySelectorAll("button.copy").forEach(function (copy) {
    var text = copy.parentElement.querySelector("pre");
    copy.hidden = false;
    copy.addEventListener("click", function () {
      function done() { copy.textContent = "Copied"; setTimeout(function () { copy.textContent = "Copy"; }, 2000); }
      function select() { getSelection().selectAllChildren(text); copy.textContent = "Selected"; }
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, select); else select();
    });
  });
  addEventListener("beforeprint", function () { document.querySelectorAll("details").forEach(function (one) { one.open = true; }); });
})();
