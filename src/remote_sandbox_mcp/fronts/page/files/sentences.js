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
  "no answer within {time}": "{time} 内没有回答",
  "unable to write {path}: {why}": "无法写入 {path}：{why}",
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
  // Tools, machines and sandboxes
  "no sandbox is configured; set REMOTE_HOST or REMOTE_SANDBOX_LIST, or write a config.toml (remote-sandbox-mcp doctor shows where)": "没有配置沙箱；请设置 REMOTE_HOST 或 REMOTE_SANDBOX_LIST，或编写 config.toml（remote-sandbox-mcp doctor 会指出位置）",
  "no sandbox is named {name}; {words}there are: {list}": "没有名为 {name} 的沙箱；{words}现有：{list}",
  "its Python starts no more": "它的 Python 无法再启动",
  "its Python starts no more ({words})": "它的 Python 无法再启动（{words}）",
  "logged in, but no command could be started: {why}": "已登录，但无法启动命令：{why}",
  "logged in, but no session could be opened: {why}": "已登录，但无法打开会话：{why}",
  "logged in, but {why}": "已登录，但{why}",
  "no usable key: {why}": "没有可用的密钥：{why}",
  "{name} gives the code that was used before, so it is not sent again": "{name} 给出的是用过的验证码，因此没有再次发送",
  "too many logins wait for a code of the same seed; try again in two minutes": "等待同一种子验证码的登录太多；请两分钟后再试",
  "otp_seed cannot be used: {why}": "otp_seed 无法使用：{why}",
  "all sessions are taken, and a further login would ask for another code": "会话已全部占用，再次登录需要新的验证码",
  "no further session is granted: {why}": "服务器不再允许新的会话：{why}",
  "no session could be opened: {why}": "无法打开会话：{why}",
  "no further session could be started: {why}": "无法启动新的会话：{why}",
  "the connection was cut": "连接中断",
  "its sshd forwards no ports ({words})": "它的 sshd 不转发端口（{words}）",
  "set AllowTcpForwarding there, or install python3": "请在那里设置 AllowTcpForwarding，或安装 python3",
  "{name} has neither python3 nor SFTP, so files can only be moved with commands: install one of them": "{name} 既没有 python3 也没有 SFTP，只能用命令传文件：请安装其中之一",
  "{name} did not answer in {time}; try again later": "{name} 在 {time} 内没有回答；请稍后再试",
  "port {n} could not be reached: its socket was not handed out": "无法连接端口 {n}：没有得到它的套接字",
  "port {n} could not be reached: {why}": "无法连接端口 {n}：{why}",
  "{name} sent sockets that nobody had asked for, and was ended": "{name} 发来了没有请求的套接字，已被结束",
  "{name} was asked for {n} jobs and answered for {most}": "向 {name} 询问 {n} 个任务，得到 {most} 个回答",
  "{name} has no python3, so files go through this machine": "{name} 没有 python3，文件经由本机传输",
  "{name} does not reach {host} as {who}: {why}": "{name} 无法以 {who} 身份连接 {host}：{why}",
  "no answer from port {n} in {time}": "端口 {n} 在 {time} 内没有回答",
  "{name} offers no way to move files": "{name} 不提供传文件的途径",
  "{name} offers no way to its ports": "{name} 不提供访问端口的途径",
  "nothing can be run as root there, since its table has no `sudo`": "不能在那里以 root 运行，因为它的配置没有 `sudo`",
  "sudo refused this password, which is not tried again for another {time}, so as not to lock the account: correct the secret that `sudo` names in the machine's table": "sudo 拒绝了此密码，{time} 内不再重试，以免账户被锁定：请更正机器配置中 `sudo` 所指的密钥",
  "the password for sudo has a line end in it, which sudo cannot read": "sudo 的密码含有换行，sudo 无法读取",
  "contact was lost before the command began": "命令开始之前失去了联系",
  "{name} runs {n} times already": "{name} 已在运行 {n} 次",
  "{name} was cut off": "{name} 被中断",
  "{name} and ports not reached; name one that leads to the same place": "{name}，端口未能连接；请指定通向同一处的一个",
  "{name} is reached in a way over which no program can be started beside it": "{name} 的连接方式不能另外启动程序",
  "{name} was found, but {why}": "找到了 {name}，但{why}",
  "{name} cannot be found": "找不到 {name}",
  "{name} cannot be started: {why}": "无法启动 {name}：{why}",
  "unable to start {name}: {why}": "无法启动 {name}：{why}",
  "unable to start a process for files on this machine: {why}": "无法在本机启动处理文件的进程：{why}",
  "{path} cannot be followed: {why}; name the file or folder itself": "无法跟随 {path}：{why}；请直接指定文件或文件夹",
  "{path} changes while it is looked at; try again when nothing else writes there": "查看时 {path} 正在变化；请在没有其他写入时再试",
  "{words}... is longer than a path can be": "{words}... 超过了路径的最大长度",
  "a sandbox is named {name} already; choose another name, or delete that one first": "已有名为 {name} 的沙箱；请换一个名称，或先删除它",
  "{name} is paused; continue it with resume_sandbox": "{name} 已暂停；用 resume_sandbox 继续",
  "{name}: it is paused; continue it with resume_sandbox": "{name}：已暂停；用 resume_sandbox 继续",
  "{name} has not answered within {time}": "{name} 在 {time} 内没有回答",
  "{name} is not there any more": "{name} 已不存在",
  "{name} could not be renewed within {time}": "{name} 未能在 {time} 内续期",
  "slurm: only a sandbox on a cluster takes options of Slurm; name the cluster with on": "slurm：只有集群上的沙箱接受 Slurm 选项；请用 on 指定集群",
  "on: {why}; there are: {list}": "on：{why}；现有：{list}",
  "no sandbox is made, for its platform is not known: {why}": "没有创建沙箱，因为不知道它的平台：{why}",
  "the provider {name} is configured for disposable sandboxes, but cannot be used here; there are: {list}. Configure the platform's address, or choose another provider": "一次性沙箱配置了提供方 {name}，但在这里不可用；现有：{list}。请配置平台地址，或选择其他提供方",
  "name must have 1 to {n} characters without \"/\", \":\" and control characters": "name 须为 1 到 {n} 个字符，不含 \"/\"、\":\" 和控制字符",
  "name {name} looks like the id of a sandbox; choose another": "名称 {name} 像是沙箱的编号；请换一个",
  "gpu: {words}; say how many, as gpu=1": "gpu：{words}；请写数量，如 gpu=1",
  "network names {n} hosts; name at most {most}, or use *.name": "network 写了 {n} 个主机；最多 {most} 个，或用 *.name",
  "env: {name} is no name of a variable; use letters, digits and underscores": "env：{name} 不是变量名；请用字母、数字和下划线",
  "volumes: each needs a source, and a target that is a whole path inside the sandbox": "volumes：每一项都需要 source 和沙箱内的完整路径 target",
  "network: {host} is no host; write a name, *.name, an address, or a range such as 10.0.0.0/8, with a port if need be (example.org:8443)": "network：{host} 不是主机；请写名称、*.name、地址或 10.0.0.0/8 这样的网段，必要时带端口（example.org:8443）",
  "the provider {name} is not configured here; configure it again to reach its sandboxes": "这里没有配置提供方 {name}；重新配置后才能访问它的沙箱",
  "the sandbox {name} cannot be used now: another server (process {n}) is {words} it; try again in a moment": "沙箱 {name} 现在不能使用：另一个服务器（进程 {n}）正在处理它（{words}）；请稍后再试",
  "the sandbox {words}; list_sandboxes shows those that there are": "沙箱 {words}；list_sandboxes 会列出现有的沙箱",
  "{name} could not be deleted within {time}; try again later": "未能在 {time} 内删除 {name}；请稍后再试",
  "the secret in its resume command is not known any more": "恢复命令中的密钥已不再保存",
  "there is no watch {n}; list_background_tasks shows those that there are": "没有看护 {n}；list_background_tasks 会列出现有的看护",
  "watch {n} changes all the time, so nothing was started; try again": "看护 {n} 一直在变化，因此没有启动；请再试一次",
  "{who} was not started again: {why}": "{who} 没有重新启动：{why}",
  "an array is resumed as a whole: pass {name}": "作业数组只能整体恢复：请传 {name}",
  "{name} on {host} has no resume command: pass one as resume_command now, or when it is started with exec_bash_background": "{host} 上的 {name} 没有恢复命令：现在用 resume_command 传入，或在 exec_bash_background 启动时给出",
  "{name} on {host} was resumed with a secret, which is not kept after the end of its watch: pass the whole command as resume_command": "{host} 上的 {name} 恢复时用了密钥，看护结束后不再保存：请用 resume_command 传入完整命令",
  "{who} was started anew in the meantime, so nothing was done; see how it is, and try again": "{who} 在此期间已重新启动，因此没有做任何事；请查看后再试",
  "{who} could not be started again yet: {why}; the watchdog tries again": "{who} 还未能重新启动：{why}；看门狗会再试",
  "nothing is to be typed: give text, keys, or both": "没有要输入的内容：请给出 text、keys 或两者",
  "{name} is {words} and no job: it can be checked, waited for and stopped, no more": "{name} 是 {words}，不是任务：只能查看、等待和停止",
  "the screen of {name} cannot be read by tmux: {why}": "tmux 无法读取 {name} 的屏幕：{why}",
  "{why}; text can be typed into it when it runs": "{why}；运行时才能向它输入文字",
  "{name} is the login node of a Slurm cluster, and its operator allows no jobs there (login_jobs): {why}": "{name} 是 Slurm 集群的登录节点，管理者不允许在那里运行任务（login_jobs）：{why}",
  "slurm is for the queue of a cluster, and {name} is none: leave it out": "slurm 用于集群的队列，{name} 不是集群：请去掉它",
  "an array is watched as a whole: pass tmux_session={name}": "作业数组只能整体看护：请传 tmux_session={name}",
  "{name} knows no session {who}, so nothing is watched: {why}": "{name} 上没有会话 {who}，因此没有看护：{why}",
  "auto_resume is for jobs of exec_bash_background: how {name} was submitted is not known, so it cannot be submitted again; watch it without auto_resume": "auto_resume 用于 exec_bash_background 的任务：不知道 {name} 是怎样提交的，无法重新提交；请不带 auto_resume 看护",
  "{name} is not on {host}: {why}": "{host} 上没有 {name}：{why}",
  "until_pattern and silence_s are for jobs; {name} is awaited to its end": "until_pattern 和 silence_s 用于任务；{name} 会等到结束",
  "{name} is on several sandboxes ({list}); pass sandbox_name": "{name} 在多个沙箱上（{list}）；请传 sandbox_name",
  "{name} never started: {host} knows nothing of it; start it again": "{name} 从未启动：{host} 上没有它的记录；请重新启动",
  "{name} never started: {why}; start it again": "{name} 从未启动：{why}；请重新启动",
  "no transfer has the id {name}; {words}": "没有编号为 {name} 的传输；{words}",
  "unable to make {path}: {why}": "无法创建 {path}：{why}",
  "a listing cannot be understood ({words})": "无法理解列表（{words}）",
  "{path} is not a folder": "{path} 不是文件夹",
  "{path} names its folder in a way that is not possible": "{path} 写的文件夹不可能存在",
  "{path} is not linked any more; link it again": "{path} 已不再绑定；请重新绑定",
  "{name} has been {words} for {n} minutes": "{name} 处于“{words}”已有 {n} 分钟",
  "wait for it, or end it": "请等待，或结束它",
  "the name of {path} is not UTF-8, so it cannot be linked; rename it": "{path} 的名称不是 UTF-8，无法绑定；请改名",
  "{path} has {words} ({list}) to send to {name}, so this needs a confirmation; leave out what need not go there by excludes, or confirm it": "{path} 有 {words}（{list}）要发送到 {name}，需要确认；请用 excludes 去掉不需要的，或确认",
  "{path} is not in a linked folder; {words}": "{path} 不在绑定的文件夹中；{words}",
  "{path} is not linked, because it is {words}; link a folder that holds one project only": "没有绑定 {path}，因为它是 {words}；请绑定只含一个项目的文件夹",
  "{path} is not linked any more, so its large files are not fetched": "{path} 已不再绑定，因此不获取它的大文件",
  "{path} is in both keep_local and keep_remote; choose one of them": "{path} 同时在 keep_local 和 keep_remote 中；请选择其一",
  "{path} is not a path in {where}": "{path} 不是 {where} 中的路径",
  "{path} is linked to {where}; unlink it first": "{path} 已绑定到 {where}；请先解除绑定",
  "{path} cannot be linked, because {where} is linked and one lies in the other; unlink that one, or exclude the inner folder from the outer one": "无法绑定 {path}，因为 {where} 已绑定，且一个在另一个之内；请解除那个绑定，或在外层排除内层文件夹",
  "{path} cannot be linked, because {name} is linked to {where}, and one lies in the other; choose another remote folder": "无法绑定 {path}，因为 {name} 已绑定到 {where}，且一个在另一个之内；请换一个远程文件夹",
  "{path} is not in the trash; remote-sandbox-mcp workspaces trash lists what is": "{path} 不在回收站中；remote-sandbox-mcp workspaces trash 会列出其中的内容",
  "{path} is there, and another one than in the trash; add --force to replace it, which the trash keeps": "{path} 已存在，且与回收站中的不同；加 --force 可替换它，回收站会保留",
  "the trash cannot be written: {why}": "无法写入回收站：{why}",
  "the trash would hold more than {words} of the last days; remote-sandbox-mcp workspaces trash --empty empties it": "回收站最近几天的内容将超过 {words}；remote-sandbox-mcp workspaces trash --empty 可清空",
  "{path} is not put back, because a link on the way leads out of {where}": "没有放回 {path}，因为途中的链接通向 {where} 之外",
  "{path} was not put back: {why}": "没有放回 {path}：{why}",
  "{name} cannot be asked now: {why}": "现在无法询问 {name}：{why}",
  "{name} was not read: {why}": "没有读取 {name}：{why}",
  "unable to create a sandbox on {name}: {why}": "无法在 {name} 上创建沙箱：{why}",
  "no image was named, and no default_image is configured": "没有指定镜像，也没有配置 default_image",
  "image: {words} is no name of an image on {name}; write one as python:3.12": "image：{words} 不是 {name} 上的镜像名；请写成 python:3.12 这样",
  "network: the engine on {name} cannot narrow a network to some hosts; use true for all, or leave it out": "network：{name} 上的引擎不能只放行部分主机；请用 true 放行全部，或去掉它",
  "volumes: {path} cannot be mounted: a machine's folders and other programs' volumes are not for sandboxes; use a volume whose name begins with {name}": "volumes：不能挂载 {path}：机器的文件夹和其他程序的卷不供沙箱使用；请用名称以 {name} 开头的卷",
  "volumes: {path} cannot be mounted on; write a plain path inside the sandbox": "volumes：不能挂载到 {path}；请写沙箱内的普通路径",
  "memory: a container needs {n} MB at least": "memory：容器至少需要 {n} MB",
  "env: the value of {name} has several lines, which an engine does not take; use a file": "env：{name} 的值有多行，引擎不接受；请使用文件",
  "gpu: {words} is no card; write their numbers there, as 0 or 0,2": "gpu：{words} 不是显卡；请写它们的编号，如 0 或 0,2",
  "{name} is a container on {host}, of which no image is made here; download what you want to keep, or use {words} commit on {where}": "{name} 是 {host} 上的容器，这里不制作它的镜像；请下载要保留的内容，或在 {where} 上使用 {words} commit",
  "{name} is a container on {host}, whose ports have no address; forward the port": "{name} 是 {host} 上的容器，端口没有地址；请转发端口",
  "the image is not there, and {name} could not pull it: {why}": "镜像不在那里，{name} 也未能拉取：{why}",
  "check its name, pull or load it on {name} by hand, or log in to its registry there": "请检查名称，在 {name} 上手动拉取或载入，或登录它的仓库",
  "no shell runs in it ({words})": "其中没有 shell 可运行（{words}）",
  "use an image that has /bin/sh and sleep": "请使用含有 /bin/sh 和 sleep 的镜像",
  "its container belongs to somebody else, and is left alone": "它的容器属于他人，没有改动",
  "it is still being removed after {time}": "过了 {time} 仍在删除",
  "network: nobody can take the network from an allocation of {name}; leave it out": "network：{name} 的分配不能断开网络；请去掉它",
  "image: an allocation of {name} has the nodes' own system; start a container in it": "image：{name} 的分配使用节点自己的系统；请在其中启动容器",
  "gpu: on a cluster, GPUs are named by type and number; write 2, \"a100\" or \"a100:2\"": "gpu：集群上的 GPU 按型号和数量指定；请写 2、\"a100\" 或 \"a100:2\"",
  "an allocation of {name} has the nodes' own; leave it out": "{name} 的分配使用节点自己的；请去掉它",
  "slurm option {name} is for background jobs and not for a sandbox; leave it out": "slurm 选项 {name} 用于后台任务，不用于沙箱；请去掉它",
  "{name} and slurm option {words} say the same; give one of them": "{name} 与 slurm 选项 {words} 含义相同；请只给一个",
  "it {words}; create another one": "它 {words}；请另外创建一个",
  "unable to renew {name}: {why}": "无法续期 {name}：{why}",
  "it is gone; create another one": "它已不存在；请另外创建一个",
  "{name} ends in {words}, under which nothing can be copied; name the file or folder itself": "{name} 以 {words} 结尾，无法复制到其下；请直接指定文件或文件夹",
  "excludes: a line holds a line break; give one pattern for each element": "excludes：其中一项含有换行；请每项只写一个模式",
  "exclude_file {path} has the name of a secret, so it is not used; name another": "exclude_file {path} 的名称像是密钥，因此没有使用；请换一个",
  "exclude_file {path} is over 1 MiB, which no list of patterns is; check it": "exclude_file {path} 超过 1 MiB，不会是模式列表；请检查",
  "exclude_file {path} cannot be read: {why}; check it": "无法读取 exclude_file {path}：{why}；请检查",
};

const TIME = "\\d+ (?:s|min|h|d)(?: \\d+ (?:min|h))?";
const UNITS = { s: "秒", min: "分", h: "小时", d: "天" };
const END = new RegExp(`^(.*?) ?(succeeded|failed|was stopped|was interrupted|is unknown)(?: with exit code (-?\\d+))?(?: \\((SIG[A-Z0-9]+)\\))?(?: after (${TIME}))?(?:: (.*))?$`, "s");
const LONGEST = 2000;
const known = new Map();
let patterns = null;

// Whether the {gaps} of a sentence fit a text, and which they are. The sentence with the most words of its own is tried first.
function pattern(sentence) {
  const names = [];
  const source = sentence.split(/(\{\w+\})/).map((part) => {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    if (!name) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    names.push(name);
    return name === "time" ? `(${TIME})` : name === "n" || name === "most" ? "(\\d+)" : "(.+?)";
  });
  return { names, fits: new RegExp(`^${source.join("")}$`, "s"), words: ZH[sentence], own: sentence.replace(/\{\w+\}/g, "").length };
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
  patterns ??= Object.keys(ZH).filter((sentence) => sentence.includes("{") && !END.test(sentence)).map(pattern).sort((one, other) => other.own - one.own);
  for (const { names, fits, words } of patterns) {
    const found = fits.exec(text);
    if (!found) continue;
    const gaps = Object.fromEntries(names.map((name, at) => [name, name === "time" ? time(found[at + 1]) : name === "who" ? place(found[at + 1]) : PLAIN.has(name) ? found[at + 1] : said(found[at + 1])]));
    return words.replace(/\{(\w+)\}/g, (whole, name) => gaps[name]);
  }
  return ended(text) ?? joined(text, "; ", "；") ?? about(text) ?? joined(text, ", ", "，");
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

// "gpu1: the connection was cut"
function about(text) {
  const at = text.indexOf(": ");
  const rest = at < 0 ? "" : said(text.slice(at + 2));
  return at < 0 || rest === text.slice(at + 2) ? null : `${text.slice(0, at)}：${rest}`;
}

// Several sentences; those that are not known stay.
function joined(text, sign, between) {
  const parts = text.split(sign);
  if (parts.length < 2) return null;
  const told = parts.map(said);
  return told.some((part, at) => part !== parts[at]) ? told.join(between) : null;
}
