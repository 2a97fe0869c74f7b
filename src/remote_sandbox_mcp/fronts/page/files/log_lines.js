// Lines of a log by what they say: errors, and the whole traceback that one belongs to.

const ERROR = /(?:^|[\s:[(])(?:error|fatal|panic(?:ked)?|abort(?:ed)?|exception|segmentation fault|killed|out of memory|no such file or directory|command not found|permission denied|cannot|failed|traceback)\b|^[\w.]{1,80}(?:Error|Exception|Interrupt|Exit)\b/i;
export const TRACEBACK = "Traceback (most recent call last)";
const LONGEST = 500;

// Tells for one line after the other whether it is to be seen; a traceback goes on to its first line without a space.
export function errorLines() {
  let isTrace = false;
  return (text) => {
    const line = text.slice(0, LONGEST);
    const isInside = isTrace;
    isTrace = line.startsWith(TRACEBACK) || (isTrace && /^\s/.test(line));
    return isInside || isTrace || ERROR.test(line);
  };
}
