// Numbers and words as the page shows them.

const whole = new Intl.NumberFormat("en");

export const count = (value) => whole.format(value);
export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

/** A number in few digits; a dash where there is none. */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e5) return value.toExponential(1);
  if (size < 0.01) return String(Number(value.toPrecision(2)));
  return value.toFixed(size >= 100 ? 1 : digits);
}

/** A number with two decimals, where many stand below one another. */
export const short = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));

export function bytes(value) {
  if (value < 2 ** 20) return `${Math.ceil(value / 1024)} KiB`;
  return value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(1)} MiB` : `${(value / 2 ** 30).toFixed(2)} GiB`;
}

/** 40 s, 3 min, 2 h 5 min, 3 d. */
export function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} d`;
}

/** A time of a manifest as the reader's clock shows it. */
export function when(time) {
  const at = new Date(time ?? Number.NaN);
  return Number.isNaN(at.getTime()) ? "–" : at.toLocaleString("en", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
}

export const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** Whether all of the words asked for stand in one of the texts; case is not looked at. */
export function matcher(asked) {
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  return (...texts) => {
    if (!words.length) return true;
    const text = texts.filter(Boolean).join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  };
}
