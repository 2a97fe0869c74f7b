// Sentences of the server in the reader's language. A {gap} is a sentence itself, unless its name is in PLAIN.

import { current, t } from "./words.js";

// Names, numbers and words of others, which stay as they are.
const PLAIN = new Set(["who", "name", "n", "most", "code", "signal", "line", "by", "path", "where", "list", "words", "kind", "host", "at"]);

const ZH = {
  // Outcomes, and what became of watched jobs
  "{who} succeeded": "{who} 成功结束",
  "{who} failed": "{who} 失败",
  "{who} was stopped": "{who} 已停止",
  "{who} was interrupted": "{who} 中断",
  "{who} is unknown": "{who} 状态未知",
  "{why}; it will be resumed soon, attempt {n} of {most}": "{why}；即将恢复，第 {n} 次，共 {most} 次",
  "{why}; it will be resumed at {at} (in {time}), attempt {n} of {most}": "{why}；将于 {at} 恢复（还有 {time}），第 {n} 次，共 {most} 次",
  "{who} was started again (attempt {n} of {most})": "{who} 已重新启动（第 {n} 次，共 {most} 次）",
  "{who} was submitted again (attempt {n} of {most})": "{who} 已重新提交（第 {n} 次，共 {most} 次）",
  "{who} was started again (attempt {n}, asked for by {by})": "{who} 已重新启动（第 {n} 次，由 {by} 要求）",
  "{who} was submitted again (attempt {n}, asked for by {by})": "{who} 已重新提交（第 {n} 次，由 {by} 要求）",
  "{who} could not be started again (attempt {n} of {most}): {why}": "{who} 未能重新启动（第 {n} 次，共 {most} 次）：{why}",
  "{who} could not be started again (attempt {n}, asked for by {by}): {why}": "{who} 未能重新启动（第 {n} 次，由 {by} 要求）：{why}",
  "{who} could not be started again, as {by} asked: {why}": "{who} 未能按 {by} 的要求重新启动：{why}",
  "{who} cannot be looked after, as its sandbox is not configured: {why}": "无法看护 {who}，因为没有配置它的沙箱：{why}",
  "{who} could not be looked at (once in a row): {why}": "未能查看 {who}：{why}",
  "{who} could not be looked at ({n} times in a row): {why}": "连续 {n} 次未能查看 {who}：{why}",
  "could not be looked at (once in a row): {why}": "未能查看：{why}",
  "could not be looked at ({n} times in a row): {why}": "连续 {n} 次未能查看：{why}",
  "cannot be looked after, as its sandbox is not configured: {why}": "无法看护，因为没有配置它的沙箱：{why}",
  "was started again (attempt {n} of {most})": "已重新启动（第 {n} 次，共 {most} 次）",
  "was submitted again (attempt {n} of {most})": "已重新提交（第 {n} 次，共 {most} 次）",
  "was started again (attempt {n}, asked for by {by})": "已重新启动（第 {n} 次，由 {by} 要求）",
  "{who}: running for {time}": "{who}：已运行 {time}",
  "{who}: running for {time}, last line: {line}": "{who}：已运行 {time}，最后一行：{line}",
  "running for {time}": "已运行 {time}",
  "running for {time}, last line: {line}": "已运行 {time}，最后一行：{line}",
  "{who} is running again, for {time}": "{who} 又在运行，已 {time}",
  "{who} can be seen again, and has been running for {time}": "{who} 又能看到了，已运行 {time}",
  "{who} is in the queue again, and is {why}": "{who} 又在队列中：{why}",
  "{who} can be seen again, and is {why}": "{who} 又能看到了：{why}",
  "{who} is interrupted and is not started again, after {n} of {most} attempts: {why}": "{who} 中断，已尝试 {n}/{most} 次，不再重新启动：{why}",
  "{who}: pending": "{who}：排队中",
  "{who}: pending: {why}": "{who}：排队中：{why}",
  "pending: {why}": "排队中：{why}",
  "submitted {time} ago": "{time} 前提交",
  "job {n} in partition {where} on {host}": "作业 {n}，分区 {where}，节点 {host}",
  "job {n} in partition {where}": "作业 {n}，分区 {where}",
  "its time limit ends it at {at} (in {time})": "到 {at} 达到时限（还有 {time}）",
  "expected to start at {at} (in {time})": "预计 {at} 开始（还有 {time}）",
  "the queue has not said why yet; ask again in some seconds": "队列还没有说明原因；过几秒再看",
  // Why
  "its time limit was reached": "达到了时限",
  "was ended by the queue at its time limit": "达到时限，被队列结束",
  "it was preempted: another job needed its place": "被抢占：另一个任务需要它的位置",
  "was preempted: the queue gave its place to another job": "被抢占：队列把位置给了另一个任务",
  "its node failed": "它的节点发生故障",
  "was lost because its node failed": "节点故障，任务丢失",
  "was lost because its node failed ({list})": "节点故障（{list}），任务丢失",
  "the queue put it back after it had begun": "开始后又被放回队列",
  "it was cancelled": "已被取消",
  "was cancelled in the queue, by its user or an administrator": "在队列中被用户或管理员取消",
  "was cancelled in the queue by its own user": "在队列中被自己的用户取消",
  "was cancelled by an administrator": "被管理员取消",
  "it used more memory than it was given": "超出了分配给它的内存",
  "was ended because it used more memory than it had asked for": "超出申请的内存，被结束",
  "its machine was restarted": "机器重启过",
  "it no longer runs and left no exit status": "已不在运行，没有留下退出码",
  "it no longer runs and left no exit status ({why})": "已不在运行，没有留下退出码（{why}）",
  "its machine was restarted ({why})": "机器重启过（{why}）",
  "it has ended, and its exit code is not known": "已结束，退出码未知",
  "nothing is known of the job there ({why})": "那里没有这个任务的记录（{why}）",
  "perhaps its home folder is not mounted": "可能主目录没有挂载",
  "its owner holds it: scontrol release starts it": "被所有者挂起：scontrol release 可使其开始",
  "an administrator holds it": "被管理员挂起",
  "what it waits for cannot come any more: stop it": "它等待的条件不会再满足：请停止它",
  "it asks for more time than its partition gives": "申请的时间超过分区允许的时间",
  "it asks for more nodes than its partition gives": "申请的节点超过分区允许的数量",
  "its partition takes no jobs now": "分区目前不接受任务",
  "no node can give what it asks for": "没有节点能满足它的要求",
  "its account may not be used": "账户不可用",
  "its qos may not be used": "QOS 不可用",
  "it asks for more time than its qos gives": "申请的时间超过 QOS 允许的时间",
  "it asks for more time than its account gives": "申请的时间超过账户允许的时间",
  // Machines
  "unable to open {name}: {why}": "无法打开 {name}：{why}",
  "unable to open {name} ({host}): {why}": "无法打开 {name}（{host}）：{why}",
  "unable to reach {name}: {why}": "无法连接 {name}：{why}",
  "{name} did not answer in {time}": "{name} 在 {time} 内没有回答",
  "try again later": "请稍后再试",
  "no answer": "没有回答",
  "the hub (process {n}) has not answered for {time}": "hub（进程 {n}）已有 {time} 没有回答",
  "a hub has not answered for {time}": "hub 已有 {time} 没有回答",
  "a hub does not answer": "hub 没有回答",
  "a hub holds its lock, but does not listen": "hub 持有锁，但没有监听",
  "{n} hubs in a row have ended at once; see {path}": "连续 {n} 个 hub 启动后立即结束；请查看 {path}",
  "no answer in {time}": "{time} 内没有回答",
  "connection refused": "连接被拒绝",
  "the login was refused": "登录被拒绝",
  "check user, key and password": "请检查用户、密钥和密码",
  "check user, key and password ({words})": "请检查用户、密钥和密码（{words}）",
  "not tried again for another {time}, so as not to be locked out": "再过 {time} 才会重试，以免账户被锁定",
  "logged in, but its shell did not answer": "已登录，但 shell 没有回答",
  "the connection was refused": "连接被拒绝",
  "check host and port": "请检查主机和端口",
  "is sshd running there?": "那里的 sshd 在运行吗？",
  "{name} knows no {who}: {why}": "{name} 上没有 {who}：{why}",
  "nothing is known of it there": "那里没有它的记录",
  "it will be resumed at {at} (in {time}), attempt {n} of {most}": "将于 {at} 恢复（还有 {time}），第 {n} 次，共 {most} 次",
  // The state file
  "unable to use {path}: {why}": "无法使用 {path}：{why}",
  "its disk is full": "磁盘已满",
  "free some space, or set REMOTE_SANDBOX_MCP_HOME to a folder on another disk": "请腾出空间，或把 REMOTE_SANDBOX_MCP_HOME 设为其他磁盘上的文件夹",
  "this user cannot write there": "当前用户不能在那里写入",
  "make it writable, or set REMOTE_SANDBOX_MCP_HOME to a folder that is": "请使其可写，或把 REMOTE_SANDBOX_MCP_HOME 设为可写的文件夹",
  "process {n} keeps it locked": "进程 {n} 一直锁定着它",
  "process {n} keeps it locked and has done so for {time}": "进程 {n} 锁定它已有 {time}",
  "another process keeps it locked": "另一个进程一直锁定着它",
  "another process keeps it locked and has done so for {time}": "另一个进程锁定它已有 {time}",
  "try again": "请再试一次",
  "if it stays so, end that process": "如果一直如此，请结束该进程",
  "this process has as many files open as it may": "此进程打开的文件已达上限",
  "raise the limit (ulimit -n), and restart it": "请提高上限（ulimit -n）并重启它",
  "it is damaged ({words})": "它已损坏（{words}）",
  "`remote-sandbox-mcp doctor --repair` copies it, and saves what can be read": "`remote-sandbox-mcp doctor --repair` 会保留副本并抢救能读出的内容",
  "`remote-sandbox-mcp doctor` checks it": "`remote-sandbox-mcp doctor` 会检查它",
  // What the page may not, or cannot
  "enter the key of this server again": "请重新输入此服务器的密钥",
  "that is not the key of this server; remote-sandbox-mcp dashboard opens the page with the right one": "这不是此服务器的密钥；运行 remote-sandbox-mcp dashboard 会用正确的密钥打开页面",
  "a folder is allowed on its own computer alone, on this page there or by: remote-sandbox-mcp allow PATH": "只能在文件夹所在的电脑上授权：在那里打开此页面，或运行 remote-sandbox-mcp allow PATH",
  "the key did not come in time": "密钥没有及时到达",
  "too many wrong keys; wait a moment": "错误的密钥太多，请稍候",
  "only the page itself may ask for this": "只有页面本身可以这样请求",
  "too many streams are open; close some pages": "打开的连接太多，请关闭一些页面",
  "there is no such workspace (any more)": "（已经）没有这个工作区",
  "{path} is not in conflict (any more)": "{path}（已经）没有冲突",
  "{path} is not linked; link it from a terminal, or by an agent": "{path} 没有绑定；请在终端或由智能体绑定",
  "give up to {n} characters to search for": "搜索内容最多 {n} 个字符",
  "write the whole path, which begins with / or ~": "请写完整路径，以 / 或 ~ 开头",
  "the page may not call {name}; it may call: {list}": "页面不能调用 {name}，只能调用：{list}",
  "there is no {words}": "没有 {words}",
  "{words} is not for this address": "此地址不接受 {words}",
  "{name} must be a whole number": "{name} 必须是整数",
  "the query has too many fields": "查询的字段太多",
  "send Content-Type: application/json": "请发送 Content-Type: application/json",
  "the body is not valid JSON": "内容不是有效的 JSON",
  "the body must be a JSON object": "内容必须是 JSON 对象",
  "the body did not come to its end": "内容没有传完",
  "the body is over {n} bytes": "内容超过 {n} 字节",
  "send {words}": "请发送 {words}",
};

const TIME = "\\d+ (?:s|min|h|d)(?: \\d+ (?:min|h))?";
const UNITS = { s: "秒", min: "分", h: "小时", d: "天" };
const END = new RegExp(`^(.*?) ?(succeeded|failed|was stopped|was interrupted|is unknown)(?: with exit code (-?\\d+))?(?: \\((SIG[A-Z0-9]+)\\))?(?: after (${TIME}))?(?:: (.*))?$`, "s");
const LONGEST = 2000;
const known = new Map();
let patterns = null;

// Whether the {gaps} of a sentence fit a text, and which they are.
function pattern(sentence) {
  const names = [];
  const source = sentence.split(/(\{\w+\})/).map((part) => {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    if (!name) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    names.push(name);
    return name === "time" ? `(${TIME})` : name === "n" || name === "most" ? "(\\d+)" : "(.+?)";
  });
  return { names, fits: new RegExp(`^${source.join("")}$`, "s"), words: ZH[sentence] };
}

export function said(text) {
  if (current() !== "zh" || !text || text.length > LONGEST) return text;
  if (!known.has(text)) {
    if (known.size > LONGEST) known.clear();
    known.set(text, inChinese(text) ?? text);
  }
  return known.get(text);
}

// A time as the server says it: 2 h 3 min.
const time = (text) => text.replace(/(\d+) (s|min|h|d)\b/g, (whole, number, unit) => `${number} ${UNITS[unit]}`);

// "train on gpu1"
const place = (text) => text.replace(/^(\S+) on (\S+)$/, "$2 上的 $1");

function inChinese(text) {
  if (Object.hasOwn(ZH, text)) return ZH[text];
  patterns ??= Object.keys(ZH).filter((sentence) => sentence.includes("{") && !END.test(sentence)).map(pattern);
  for (const { names, fits, words } of patterns) {
    const found = fits.exec(text);
    if (!found) continue;
    const gaps = Object.fromEntries(names.map((name, at) => [name, name === "time" ? time(found[at + 1]) : name === "who" ? place(found[at + 1]) : PLAIN.has(name) ? found[at + 1] : said(found[at + 1])]));
    return words.replace(/\{(\w+)\}/g, (whole, name) => gaps[name]);
  }
  return ended(text) ?? joined(text);
}

// "train on gpu1 failed with exit code 3 (SIGKILL) after 5 s: its node failed"
function ended(text) {
  const found = END.exec(text);
  if (!found) return null;
  const [who, verb, code, signal, after, why] = found.slice(1);
  const head = ZH[`{who} ${verb}`].replace("{who}", place(who)).trim();
  const more = [code && t("exit {code}", { code }), signal, after && `用时 ${time(after)}`].filter(Boolean).join("，");
  return `${head}${more ? `（${more}）` : ""}${why ? `：${said(why)}` : ""}`;
}

// Several sentences; those that are not known stay.
function joined(text) {
  for (const [sign, between] of [["; ", "；"], [", ", "，"]]) {
    const parts = text.split(sign);
    if (parts.length < 2) continue;
    const told = parts.map(said);
    if (told.some((part, at) => part !== parts[at])) return told.join(between);
  }
  return null;
}
