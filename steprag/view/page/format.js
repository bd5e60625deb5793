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
