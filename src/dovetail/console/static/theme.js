// The light or dark theme: the system's, or the user's choice, which is kept; `data-theme` on the root element.

const KEY = "dovetail.console.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be forbidden
  }
}

function current() {
  return chosen() ?? (dark.matches ? "dark" : "light");
}

function apply() {
  const theme = current();
  document.documentElement.dataset.theme = theme;
  const control = document.getElementById("theme");
  if (control) control.textContent = theme === "dark" ? "Light" : "Dark"; // what a press gives
}

export function setUpTheme() {
  document.getElementById("theme").addEventListener("click", () => {
    try {
      localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
    } catch {
      // then only the system decides
    }
    apply();
  });
  apply();
}

dark.addEventListener("change", apply);
apply();
