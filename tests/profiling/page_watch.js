// Runs before the page's own scripts.
window.seen = {errors: [], blocked: []};
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => seen.blocked.push(event.blockedURI));
const shout = console.error; console.error = (...words) => { seen.errors.push(words.join(" ")); shout(...words); };
