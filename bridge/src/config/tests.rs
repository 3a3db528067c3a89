use std::fs;

use gpu_bridge_core::model::{Domain, PoolKind};

use super::*;
use crate::slurm::TokenSource;

const EXAMPLE: &str = include_str!("../../deploy/gpu-bridge.example.toml");

fn example() -> Config {
    check_text(Path::new("gpu-bridge.toml"), EXAMPLE, Files::Ignored).expect("the example is good")
}

/// Problems of the example after a replacement, as `line:column field [code]`.
fn problems(from: &str, to: &str) -> Vec<Problem> {
    assert!(EXAMPLE.contains(from), "{from} is not in the example");
    check_text(Path::new("gpu-bridge.toml"), &EXAMPLE.replacen(from, to, 1), Files::Ignored)
        .err()
        .unwrap_or_default()
}

#[test]
fn the_example_says_what_it_should() {
    let config = example();
    assert_eq!(config.site.nodes.len(), 8);
    assert_eq!(config.site.pools.len(), 3);
    let node = &config.site.nodes[&"gpu05".into()];
    assert_eq!(node.kubernetes.as_str(), "gpu05.cluster.example.org");
    assert_eq!(node.slurm.as_str(), "gpu05");
    assert_eq!((node.home.as_str(), node.gpus), ("train", 8));
    let burst = &config.site.pools[&"gpu-burst".into()];
    assert_eq!((burst.domain(), burst.ceiling), (Domain::Kubernetes, Some(4)));
    assert!(
        matches!(&burst.kind, PoolKind::NodePool { labels, taints } if labels.len() == 2 && taints.len() == 1)
    );
    assert_eq!(config.slurm.endpoint, SlurmEndpoint::Http("http://127.0.0.1:6820".to_owned()));
    assert_eq!(config.policies[0].pools.as_ref().map(BTreeSet::len), Some(1));
    assert_eq!(config.calendar.windows().count(), 2);
    // Friday 2026-11-13, 20:00 in Shanghai.
    let t = "2026-11-13T12:00Z".parse().unwrap();
    assert_eq!(config.calendar.demand(&"gpu-burst".into(), t), 3);
}

#[test]
fn a_site_without_slurmrestd_needs_neither_url_nor_token() {
    let lines = |text: &str| {
        let rest_only = |line: &&str| {
            !["url =", "user = \"slurm\"", "token_file"].iter().any(|key| line.starts_with(key))
        };
        text.lines()
            .filter(rest_only)
            .collect::<Vec<_>>()
            .join("\n")
            .replace("mode = \"rest\"", "mode = \"cli\"")
    };
    let config =
        check_text(Path::new("gpu-bridge.toml"), &lines(EXAMPLE), Files::Ignored).expect("it is good");
    assert_eq!((config.slurm.endpoint, config.slurm.token), (SlurmEndpoint::Commands, None));
    assert_eq!(config.slurm.squeue, None);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_mistake_is_named_with_its_place() {
    // (what stands in the example, what a person wrote instead, field, code, a part of the line)
    let cases = [
        ("tick = \"2s\"", "tik = \"2s\"", "daemon.tik", Code::UnknownKey, "did you mean tick?"),
        ("tick = \"2s\"", "tick = 2", "daemon.tick", Code::Value, "found 2, expected a duration"),
        ("tick = \"2s\"", "tick = \"-2s\"", "daemon.tick", Code::Value, "cannot be negative"),
        ("tick = \"2s\"", "tick = \"1h\"", "daemon.tick", Code::Value, "expected 100ms to 1m"),
        ("log = \"info\"", "log = \"=,=\"", "daemon.log", Code::Value, "log filter"),
        ("log = \"info\"", "log = \"\"", "daemon.log", Code::Value, "not empty"),
        ("[slurm]", "[slurn]", "slurm", Code::MissingKey, "a [slurm] table"),
        ("http://127.0.0.1:6820", "https://a", "slurm.url", Code::Value, "plain HTTP"),
        ("http://127.0.0.1:6820", "http://root@a/x", "slurm.url", Code::Value, "scheme, host and port only"),
        ("http://127.0.0.1:6820", "unix:run/x", "slurm.url", Code::Value, "absolute path"),
        ("http://127.0.0.1:6820", "unix:/", "slurm.url", Code::Value, "the socket itself"),
        ("http://127.0.0.1:6820", "http://:6820", "slurm.url", Code::Value, "scheme, host and port only"),
        ("http://127.0.0.1:6820", "http://127.0.0.1:99999", "slurm.url", Code::Value, "from 1 to 65535"),
        ("http://127.0.0.1:6820", "http://127.0.0.1:0", "slurm.url", Code::Value, "from 1 to 65535"),
        ("http://127.0.0.1:6820", "http://[::1]:", "slurm.url", Code::Value, "from 1 to 65535"),
        ("token_file", "# token_file", "slurm.token_file", Code::MissingKey, "since url is http://"),
        (
            "token_file",
            "token_command = [\"make-token\"]\ntoken_file",
            "slurm.token_command",
            Code::Contradiction,
            "token_file and token_command",
        ),
        ("token_file = ", "token_command = [] # ", "slurm.token_command", Code::Value, "a command"),
        (
            "token_alarm_before = \"7d\"",
            "token_alarm_before = \"400d\"",
            "slurm.token_alarm_before",
            Code::Value,
            "expected 0s to 365d",
        ),
        ("demand_age = \"30s\"", "demand_age = \"2d\"", "slurm.demand_age", Code::Value, "expected 0s to 1d"),
        ("# api_version = \"v0.0.42\"", "api_version = \"42\"", "slurm.api_version", Code::Value, "v0.0.42"),
        ("mode = \"rest\"", "mode = \"cmd\"", "slurm.mode", Code::Value, "\"rest\" or \"cli\""),
        ("mode = \"rest\"", "mode = \"cli\"", "slurm.url", Code::Contradiction, "url, user, token_file"),
        ("# squeue = [\"squeue\"]", "squeue = []", "slurm.squeue", Code::Value, "a command"),
        ("[\"scontrol\"]", "\"scontrol\"", "slurm.scontrol", Code::Value, "expected a list"),
        ("[\"scontrol\"]", "[]", "slurm.scontrol", Code::Value, "a command"),
        ("kubeconfig = ", "# kubeconfig = ", "kubernetes.kubeconfig", Code::MissingKey, "add kubeconfig"),
        ("\"gpu[05-08]\"", "\"gpu[04-07]\"", "node.gpu[04-07].name", Code::Duplicate, "gpu04 a second time"),
        ("\"gpu[05-08]\"", "\"gpu[05-\"", "node.gpu[05-.name", Code::Value, "unbalanced brackets"),
        ("gpu[05-08].cluster", "gpu[05-07].cluster", "node.gpu[05-08].kubernetes", Code::Value, "4 names"),
        (
            "gpu[05-08].cluster",
            "gpu[04-07].cluster",
            "node.gpu[05-08].kubernetes",
            Code::Duplicate,
            "two nodes",
        ),
        (
            "gpus = 8",
            "slurm = \"gpu[05-08]\"\ngpus = 8",
            "node.gpu[05-08].name",
            Code::Duplicate,
            "gpu[05-08] for two nodes each in slurm, gpu05 for gpu01 and gpu05",
        ),
        (
            "topology_block = \"rack-b\"",
            "slurm = \"gpu[04,06-08]\"",
            "node.gpu[05-08].slurm",
            Code::Duplicate,
            "gpu04 for two nodes in slurm, gpu04 and gpu05",
        ),
        (
            "gpu[05-08].cluster",
            "GPU[05-08].cluster",
            "node.gpu[05-08].kubernetes",
            Code::Value,
            "GPU[05-08].cluster.example.org, which can be no names in Kubernetes",
        ),
        ("log = \"info\"", "log = \"inof\"", "daemon.log", Code::Value, "did you mean \"info\"?"),
        (
            "pool = \"gpu-burst\"\nnodes = 3",
            "pool = \"train\"\nnodes = 3",
            "window.friday-promotion.pool",
            Code::Contradiction,
            "train, a pool of Slurm's",
        ),
        ("gpus = 8", "gpus = 0", "node.gpu[01-04].gpus", Code::Value, "from 1 to 64"),
        ("gpus = 8", "gpus = \"8\"", "node.gpu[01-04].gpus", Code::Value, "without quotes"),
        ("nodes = \"gpu[01-07]\"", "", "pool.train.nodes", Code::MissingKey, "a pool without nodes"),
        (
            "nodes = \"gpu[01-07]\"",
            "nodes = \"gpu[01-08]\"",
            "pool.gpu-inference.nodes",
            Code::Duplicate,
            "at home in train",
        ),
        (
            "nodes = \"gpu[01-07]\"",
            "nodes = \"gpu[01-06]\"",
            "node",
            Code::Contradiction,
            "node gpu07 in no pool",
        ),
        (
            "nodes = \"gpu08\"",
            "nodes = \"gpu88\"",
            "pool.gpu-inference.nodes",
            Code::UnknownName,
            "did you mean gpu",
        ),
        (
            "domain = \"slurm\"",
            "domain = \"slrum\"",
            "pool.train.domain",
            Code::Value,
            "did you mean \"slurm\"?",
        ),
        ("name = \"gpu-burst\"", "name = \"train\"", "pool.train.name", Code::Duplicate, "unique names"),
        (
            "name = \"gpu-burst\"",
            "name = \"gpu burst\"",
            "pool.gpu burst.name",
            Code::Value,
            "letters, digits",
        ),
        ("floor = 3", "floor = -3", "pool.train.floor", Code::Value, "found -3, expected a whole number"),
        ("floor = 3", "floor = 9", "pool.train.floor", Code::Contradiction, "fewer nodes"),
        (
            "ceiling = 4",
            "ceiling = 4\nfloor = 5",
            "pool.gpu-burst.ceiling",
            Code::Contradiction,
            "below the floor",
        ),
        (
            "partition = \"gpu\"",
            "labels = {}",
            "pool.train.labels",
            Code::Contradiction,
            "only where domain is kubernetes",
        ),
        ("\"roll-back\"", "\"requeue\"", "pool.train.escalation", Code::NotYet, "use \"wait\""),
        ("drain_deadline", "evict_deadline", "pool.train.evict_deadline", Code::Contradiction, "remove it"),
        (
            "drain_deadline = \"24h\"",
            "drain_deadline = \"1s\"",
            "pool.train.drain_deadline",
            Code::Value,
            "range",
        ),
        ("infer:NoSchedule", "infer:NoWay", "pool.gpu-inference.taints[0]", Code::Value, "NoExecute"),
        ("infer:NoSchedule", "infer", "pool.gpu-inference.taints[0]", Code::Value, "add :NoSchedule"),
        (
            "\"gpu.model\" = ",
            "gpu.model = ",
            "pool.gpu-inference.labels",
            Code::Value,
            "quote keys with dots",
        ),
        (
            "\"absent-allowed\"",
            "\"required\"",
            "pool.train.node_word",
            Code::NotYet,
            "set node_word = \"absent-allowed\"",
        ),
        ("node_word = \"absent-allowed\"", "", "pool.train.node_word", Code::NotYet, "this one has none yet"),
        (
            "node_word_reason = \"slurmd",
            "# \"",
            "pool.train.node_word_reason",
            Code::MissingKey,
            "status shows",
        ),
        (
            "# sha256 = \"…\"",
            "sha256 = \"abc\"",
            "policy.prewarm.sha256",
            Code::Value,
            "64 hexadecimal digits",
        ),
        ("mode = \"active\"", "mode = \"on\"", "policy.prewarm.mode", Code::Value, "\"shadow\""),
        (
            "pools = [\"gpu-burst\"]",
            "pools = [\"burst\"]",
            "policy.prewarm.grants.pools[0]",
            Code::UnknownName,
            "unknown pool",
        ),
        (
            "pools = [\"gpu-burst\"]",
            "pools = [\"gpu-burst\", \"train\"]",
            "policy.prewarm.grants.pools[1]",
            Code::Contradiction,
            "train, a pool of Slurm's",
        ),
        (
            "\npool = \"gpu-burst\"",
            "\npool = \"gpu-brust\"",
            "window.friday-promotion.pool",
            Code::UnknownName,
            "did you mean \"gpu-burst\"?",
        ),
        ("nodes = 3", "nodes = 5", "window.friday-promotion.nodes", Code::Contradiction, "ceiling of 4"),
        (
            "\"0 18 * * FRI\"",
            "\"0 18 * * FRY\"",
            "window.friday-promotion.cron",
            Code::Calendar,
            "day of week",
        ),
        ("\"0 18 * * FRI\"", "\"0 0 30 2 *\"", "window.friday-promotion.cron", Code::Calendar, "never opens"),
        (
            "Asia/Shanghai",
            "Asia/Shangai",
            "window.friday-promotion.zone",
            Code::Calendar,
            "did you mean \"Asia/Shanghai\"?",
        ),
        (
            "duration = \"6h\"",
            "duration = \"0h\"",
            "window.friday-promotion.duration",
            Code::Calendar,
            "not positive",
        ),
        (
            "duration = \"6h\"",
            "duration = \"-6h\"",
            "window.friday-promotion.duration",
            Code::Value,
            "negative",
        ),
        (
            "duration = \"6h\"",
            "end = \"2027-01-01T00:00:00\"",
            "window.friday-promotion.end",
            Code::Contradiction,
            "replace end",
        ),
        ("lead = \"30m\"", "lead = \"learned\"", "window.friday-promotion.lead", Code::NotYet, "30m"),
        (
            "[\"2026-12-25\"]",
            "[\"2026-12-32\"]",
            "window.friday-promotion.except[0]",
            Code::Value,
            "year-month-day",
        ),
        (
            "name = \"singles-day\"",
            "name = \"friday-promotion\"",
            "window.friday-promotion.name",
            Code::Duplicate,
            "twice",
        ),
        ("ticket = ", "# ticket = ", "window.singles-day.ticket", Code::Calendar, "needs a ticket"),
        (
            "2027-11-12T02:00:00",
            "2027-11-10T02:00:00",
            "window.singles-day.end",
            Code::Calendar,
            "not after start",
        ),
        ("2027-11-12T02:00:00", "2027-11-12", "window.singles-day.end", Code::Value, "date, T and time"),
        (
            "\"2027-11-12T02:00:00\"",
            "2027-11-12T02:00:00Z",
            "window.singles-day.end",
            Code::Value,
            "remove the offset",
        ),
        (
            "reason = \"no changes",
            "# \"",
            "blackout.year-end-freeze.reason",
            Code::MissingKey,
            "nothing may be taken",
        ),
        ("[[blackout]]", "[[ics]]\npath = \"x\"\n[[blackout]]", "ics", Code::NotYet, "iCalendar"),
        ("[[policy]]", "[policy]", "policy", Code::Value, "write [[policy]]"),
        ("[daemon]", "colour = 1\n[daemon]", "colour", Code::UnknownKey, "unknown key"),
        ("[daemon]", "[daemon", "", Code::Syntax, "TOML"),
        ("tick = \"2s\"", "tick = \"2s\"\ntick = \"3s\"", "", Code::Syntax, "duplicate"),
    ];
    let mut failures = Vec::new();
    for (from, to, field, code, part) in cases {
        let found = problems(from, to);
        let hit = found.iter().find(|problem| problem.field == field && problem.code == code);
        let good = hit.is_some_and(|hit| {
            hit.to_string().contains(part)
                && !(hit.advice.is_empty() || hit.expected.is_empty() || hit.found.is_empty())
                && (hit.line > 1 || !field.contains('.'))
        });
        if !good {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            failures.push(format!("{to}: expected {field} [{code}] {part:?}, found {found:#?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whoever made one mistake reads one line.
#[test]
fn one_mistake_in_a_host_list_is_one_problem() {
    for (from, to, field, found) in [
        ("name = \"gpu[05-08]\"", "name = \"gpu[05-\"", "node.gpu[05-.name", "\"gpu[05-\""),
        ("nodes = \"gpu[01-07]\"", "nodes = \"gpu[01-07\"", "pool.train.nodes", "\"gpu[01-07\""),
        (
            "nodes = \"gpu[01-07]\"",
            "nodes = \"gpu[01-07,20-2000]\"",
            "pool.train.nodes",
            "unknown nodes gpu[20-2000]",
        ),
        ("nodes = \"gpu[01-07]\"", "nodes = \"gpu[01-03]\"", "node", "nodes gpu[04-07] in no pool"),
        (
            "nodes = \"gpu08\"",
            "nodes = \"gpu[05-08]\"",
            "pool.gpu-inference.nodes",
            "gpu[05-07], at home in train already",
        ),
        (
            "kubernetes = \"gpu[05-08].cluster.example.org\"",
            "kubernetes = \"gpu[01-04].cluster.example.org\"",
            "node.gpu[05-08].kubernetes",
            "gpu[01-04].cluster.example.org for two nodes each in kubernetes, \
             gpu01.cluster.example.org for gpu01 and gpu05",
        ),
        (
            "name = \"gpu[05-08]\"\nkubernetes = \"gpu[05-08].c",
            "name = \"gpu[01-08]\"\nkubernetes = \"gpu[1-8].c",
            "node.gpu[01-08].name",
            "nodes gpu[01-04] a second time",
        ),
    ] {
        let problems = problems(from, to);
        let told: Vec<_> = problems.iter().map(|problem| (&*problem.field, &*problem.found)).collect();
        assert_eq!(told, [(field, found)], "{to}");
    }
}

#[test]
fn dates_and_times_may_stand_without_quotes() {
    let from = "\"2027-11-12T02:00:00\"";
    assert_eq!(problems(from, "2027-11-12T02:00:00"), []);
    assert_eq!(problems("\"2027-12-31\"", "2027-12-31"), []);
}

#[test]
fn a_problem_is_one_line_with_its_place() {
    let found = problems("floor = 3", "floor = -3");
    let line = 1 + EXAMPLE.lines().position(|line| line.starts_with("floor = 3")).unwrap();
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [format!(
            "gpu-bridge.toml:{line}:9: pool.train.floor: found -3, expected a whole number from 0 to 65536; \
             use a number in this range  [GB0104]"
        )]
    );
}

#[test]
fn all_problems_at_once_and_in_order() {
    let text = EXAMPLE
        .replace("tick = \"2s\"", "tick = 2")
        .replace("user = \"slurm\"", "usr = \"slurm\"")
        .replace("gpus = 8", "gpus = 800")
        .replace("zone = \"Europe/Berlin\"", "zone = \"Europe/Bärlin\"")
        .replace("duration = \"6h\"", "duration = \"6 hours\"");
    let found = check_text(Path::new("x.toml"), &text, Files::Ignored).unwrap_err();
    let fields: Vec<&str> = found.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "daemon.tick",
            "slurm.usr",
            "node.gpu[01-04].gpus",
            "node.gpu[05-08].gpus",
            "window.friday-promotion.duration",
            "blackout.year-end-freeze.zone"
        ]
    );
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    let found = problems("token_file = \"/etc/gpu-bridge/slurm.jwt\"", "token = \"eyJhbGciOi\"");
    assert!(found.iter().any(|problem| problem.field == "slurm.token"), "{found:?}");
    assert!(found.iter().all(|problem| !problem.to_string().contains("eyJ")), "{found:?}");
}

#[test]
fn files_are_looked_for_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpu-bridge.toml");
    let text = EXAMPLE
        .replace("/etc/gpu-bridge/", "")
        .replace("/usr/lib/gpu-bridge/policies/", "")
        .replace("# [calendar]\n# file", "[calendar]\nfile");
    fs::write(&file, &text).unwrap();
    let missing = check(&file).unwrap_err();
    let fields: Vec<&str> = missing.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        ["slurm.token_file", "kubernetes.kubeconfig", "policy.prewarm.path", "calendar.file"],
        "{missing:?}"
    );
    assert!(missing.iter().all(|problem| problem.code == Code::MissingFile), "{missing:?}");

    for name in ["slurm.jwt", "kubeconfig", "prewarm.wasm"] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    let calendar = folder.path().join("calendar.toml");
    let window = |pool: &str, name: &str| {
        format!(
            "[[window]]\nname = \"{name}\"\npool = \"{pool}\"\nnodes = 1\ncron = \"0 0 * * *\"\n\
             zone = \"UTC\"\nduration = \"1h\"\nowner = \"me\"\n"
        )
    };
    fs::write(&calendar, window("gpu-burst", "nightly")).unwrap();
    let config = check(&file).unwrap();
    assert_eq!(config.calendar.windows().count(), 3);
    assert_eq!(config.calendar_file.as_ref(), Some(&calendar));
    assert_eq!(config.slurm.token, Some(TokenSource::File(folder.path().join("slurm.jwt"))));
    assert_eq!(check_calendar(&calendar, &config.site).unwrap().windows().count(), 1);

    // Names are unique over both files, and problems say which file.
    fs::write(&calendar, window("gpu-burst", "singles-day") + &window("nowhere", "x")).unwrap();
    let found = check(&file).unwrap_err();
    let places: Vec<_> =
        found.iter().map(|problem| (problem.file.as_path(), problem.line, problem.code)).collect();
    assert_eq!(
        places,
        [(calendar.as_path(), 2, Code::Duplicate), (calendar.as_path(), 11, Code::UnknownName)]
    );
    assert_eq!(check_calendar(&calendar, &config.site).unwrap_err().len(), 1);
}

#[test]
fn files_that_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpu-bridge.toml");
    let one = |code: Code, line: usize, column: usize| {
        let found = check(&file).unwrap_err();
        assert_eq!(
            found.iter().map(|p| (p.code, p.line, p.column)).collect::<Vec<_>>(),
            [(code, line, column)]
        );
    };
    one(Code::Unreadable, 1, 1);
    fs::write(&file, b"[daemon]\nlog = \"\xff\"").unwrap();
    one(Code::Unreadable, 2, 8);
    fs::write(&file, vec![b'#'; usize::try_from(reader::FILE_MAX).unwrap() + 1]).unwrap();
    one(Code::Unreadable, 1, 1);
    fs::write(&file, "").unwrap();
    let found = check(&file).unwrap_err();
    assert!(found.iter().all(|problem| problem.code == Code::MissingKey), "{found:?}");
}

/// Not refused: it was good once, and a restart must not fail because time passed.
#[test]
fn a_window_that_is_over_is_told_of() {
    let config = example();
    for (now, over) in [
        ("2027-11-10T00:00:00Z", &[][..]),
        // Until the end of 12 November, 2:00 in Shanghai.
        ("2027-11-11T17:59:59Z", &[]),
        ("2027-11-11T18:00:00Z", &["window.singles-day"]),
        // The last Friday before the expiry, 18:00 in Shanghai for 6 hours, and 45 minutes of cool-down.
        ("2027-12-31T16:44:59Z", &["window.singles-day"]),
        ("2027-12-31T16:45:00Z", &["window.friday-promotion", "window.singles-day"]),
    ] {
        let mut told = config.warnings(now.parse().unwrap());
        // Where the tests run there need be no scontrol.
        told.retain(|warning| warning.field.starts_with("window."));
        let fields: Vec<_> = told.iter().map(|warning| warning.field.as_str()).collect();
        assert_eq!(fields, over, "{now}");
        for warning in told {
            let line = EXAMPLE.lines().nth(warning.line - 1).unwrap();
            assert!(line == "[[window]]" && warning.code == Code::Calendar, "{warning}");
            assert!(warning.found.starts_with("a window that is over since 202"), "{warning}");
        }
    }
}

#[test]
fn where_no_token_can_come_from_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpu-bridge.toml");
    for name in ["kubeconfig", "prewarm.wasm", "slurm.jwt", "key"] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    let text = EXAMPLE.replace("/etc/gpu-bridge/", "").replace("/usr/lib/gpu-bridge/policies/", "");
    let trouble = |text: &str| {
        fs::write(&file, text).unwrap();
        match check(&file) {
            Ok(_) => None,
            Err(found) => {
                let [one] = found.as_slice() else { panic!("{found:?}") };
                assert_eq!(one.code, Code::MissingFile, "{one}");
                Some((one.field.clone(), one.to_string()))
            }
        }
    };
    for (content, says) in [
        (&b"SLURM_JWT=aaa.bbb.ccc\n"[..], None),
        (b"", Some("it is empty")),
        (b" \n", Some("it is empty")),
        (b"<html>no-secret</html>", Some("characters that no JWT has")),
        (b"aaa.bbb.ccc\naaa.bbb.ccc\n", Some("characters that no JWT has")),
        (b"\xff\xfe", Some("it is no text")),
    ] {
        fs::write(folder.path().join("slurm.jwt"), content).unwrap();
        let found = trouble(&text);
        assert_eq!(found.is_some(), says.is_some(), "{content:?}: {found:?}");
        if let (Some((field, told)), Some(says)) = (found, says) {
            assert!(field == "slurm.token_file" && told.contains(says), "{told}");
            assert!(told.contains("slurm.jwt") && !told.contains("no-secret"), "{told}");
        }
    }
    for (key, value, says) in [
        ("token_command", "[\"sh\", \"-c\", \"exit 1\"]", None),
        ("token_command", "[\"no-such-program\"]", Some("no-such-program is in no folder of PATH")),
        (
            "token_command",
            "[\"/nonexistent/scontrol\", \"token\"]",
            Some("/nonexistent/scontrol is no program"),
        ),
        ("jwt_key_file", "\"key\"", None),
        ("jwt_key_file", "\"/dev/null\"", Some("not a regular file")),
    ] {
        let text = text.replacen("token_file = \"slurm.jwt\"", &format!("{key} = {value}"), 1);
        let found = trouble(&text);
        assert_eq!(found.is_some(), says.is_some(), "{value}: {found:?}");
        if let (Some((field, told)), Some(says)) = (found, says) {
            assert!(field == format!("slurm.{key}") && told.contains(says), "{told}");
        }
    }
    // Without slurmrestd all depends on the commands.
    let alone = |commands: &str| {
        let keys = ["mode", "url", "user", "token_file", "scontrol", "squeue"].map(|key| format!("{key} = "));
        let lines = text.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
        let text: Vec<&str> = lines.collect();
        text.join("\n").replacen("[slurm]", &format!("[slurm]\nmode = \"cli\"\n{commands}"), 1)
    };
    assert_eq!(trouble(&alone("scontrol = [\"sh\"]\nsqueue = [\"sh\"]")), None);
    // The squeue beside it is what runs where none is given.
    let beside = folder.path().join("scontrol");
    std::os::unix::fs::symlink("/bin/sh", &beside).unwrap();
    let lonely = format!("scontrol = [{beside:?}]");
    for (commands, field) in [
        (lonely.as_str(), "slurm.squeue"),
        ("scontrol = [\"no-scontrol\"]\nsqueue = [\"sh\"]", "slurm.scontrol"),
        ("scontrol = [\"sh\"]\nsqueue = [\"/no/squeue\"]", "slurm.squeue"),
    ] {
        let found = trouble(&alone(commands));
        assert!(found.is_some_and(|(at, told)| at == field && told.contains("no program")), "{commands}");
    }
    std::os::unix::fs::symlink("/bin/sh", folder.path().join("squeue")).unwrap();
    assert_eq!(trouble(&alone(&lonely)), None);
    // What stands behind another program is looked at, too; that one may run it elsewhere.
    let path = folder.path().display();
    for (commands, warned) in [
        ("scontrol = [\"env\", \"/no/scontrol\"]".to_owned(), &["slurm.scontrol", "slurm.squeue"][..]),
        (
            format!("scontrol = [\"env\", \"{path}/scontrol\"]\nsqueue = [\"env\", \"/no/squeue\"]"),
            &["slurm.squeue"],
        ),
        (format!("scontrol = [\"env\", \"{path}/scontrol\"]"), &[]),
        ("scontrol = [\"env\", \"scontrol\"]".to_owned(), &[]),
        (lonely.clone(), &[]),
    ] {
        fs::write(&file, alone(&commands)).unwrap();
        let warnings = check(&file).unwrap().warnings(Timestamp::UNIX_EPOCH);
        let fields: Vec<&str> = warnings.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(fields, warned, "{commands}");
    }
    // Beside slurmrestd one that is missing is told, and which version needs it is seen later.
    fs::write(folder.path().join("slurm.jwt"), "mock-token").unwrap();
    for (scontrol, warned) in [("/no/scontrol", &["slurm.scontrol"][..]), ("/bin/sh", &[])] {
        let lines = text.lines().filter(|line| !line.starts_with("scontrol = "));
        let text = lines.collect::<Vec<_>>().join("\n");
        fs::write(&file, text.replacen("[slurm]", &format!("[slurm]\nscontrol = [{scontrol:?}]"), 1))
            .unwrap();
        let warnings = check(&file).unwrap().warnings(Timestamp::UNIX_EPOCH);
        let of_commands = warnings.iter().filter(|one| one.field != "slurm.token_file");
        assert_eq!(of_commands.map(|one| one.field.as_str()).collect::<Vec<_>>(), warned, "{scontrol}");
    }
    fs::write(folder.path().join("key"), "").unwrap();
    let found = trouble(&text.replacen("token_file = \"slurm.jwt\"", "jwt_key_file = \"key\"", 1));
    assert!(found.is_some_and(|(_, told)| told.contains("it is empty")));
}

/// A small generator with a fixed start, so that a failure is found again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

#[test]
fn cut_and_changed_files_never_panic_and_always_say_where() {
    let mut numbers = Numbers(42);
    let pieces = [
        "[",
        "]",
        "\"",
        "=",
        "\n",
        ".",
        "-1",
        "{",
        "é",
        "[[window]]",
        "true",
        "9".repeat(30).leak(),
        "#",
        "\0",
    ];
    let mut refused = 0;
    for round in 0..1_500 {
        let at = |numbers: &mut Numbers| {
            let mut at = numbers.below(EXAMPLE.len());
            while !EXAMPLE.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (a, b) = (at(&mut numbers), at(&mut numbers));
        let text = match round % 3 {
            0 => EXAMPLE[..a].to_owned(),
            1 => EXAMPLE[..a.min(b)].to_owned() + &EXAMPLE[a.max(b)..],
            _ => EXAMPLE[..a].to_owned() + pieces[numbers.below(pieces.len())] + &EXAMPLE[a..],
        };
        if let Err(found) = check_text(Path::new("x.toml"), &text, Files::Ignored) {
            refused += 1;
            assert!(!found.is_empty(), "refused without a problem:\n{text}");
            let lines = text.split('\n').count();
            for problem in found {
                assert!((1..=lines).contains(&problem.line) && problem.column >= 1, "{problem}\n{text}");
            }
        }
    }
    assert!(refused > 1_000, "{refused}");
}
