//! What slurmctld lets our user see and write, by its own word: `scontrol show config` and `scontrol show assoc_mgr`, which print
//! the same from 22.05 to 26.05 and answer everybody. Pure; decides nothing about a node, and asks nobody.

use std::collections::BTreeSet;

use gpu_bridge_core::ids::JobId;
use jiff::{SignedDuration, Timestamp};

use super::error::Error;

/// Whom slurmctld takes our requests to be from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum User {
    /// The user of the token.
    Named(String),
    /// The user that the slurmrestd behind a socket runs as.
    Id(u32),
    /// Whoever scontrol and squeue run as: behind sudo and the like nobody but Slurm can tell.
    OfCommands,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Id(id) => write!(f, "with id {id}"),
            Self::OfCommands => f.write_str("that runs scontrol and squeue"),
        }
    }
}

/// AdminLevel, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// None, or not known to slurmctld.
    None,
    /// May see everything, and make reservations.
    Operator,
    /// May update nodes too; so may root and SlurmUser.
    Administrator,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Operator => "Operator",
            Self::Administrator => "Administrator",
        }
    }
}

/// What is of use in `scontrol show config`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Config {
    /// When slurmctld wrote it, on its own clock, in whole seconds.
    as_of: Option<Timestamp>,
    /// The number that the next job gets; `None` where it is not there or none is free.
    pub(super) next_job_id: Option<JobId>,
    /// Slurm's release, such as `24.11.5`.
    pub(super) release: Option<String>,
    /// PrivateData; `None` where it is not there.
    private: Option<BTreeSet<String>>,
    /// SlurmUser with its id.
    slurm_user: Option<(String, u32)>,
    /// Is there a slurmdbd, so that users have an AdminLevel?
    database: bool,
    /// From FirstJobId to MaxJobId: job ids begin anew after it.
    ids: Option<u32>,
}

/// Above so many bits of a job id a federation writes which cluster the job came from.
const CLUSTER_BITS_FROM: u32 = 26;

/// What nobody may hide from us: a node would look emptier than it is.
const NEEDED: [&str; 3] = ["jobs", "nodes", "reservations"];

impl Config {
    /// Reads the lines `Name = value`.
    pub(super) fn read(text: &str) -> Self {
        let value = |wanted: &str| {
            let mut fields = text.lines().filter_map(|line| line.split_once('='));
            fields.find(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim())
        };
        let words = |list: &str| list.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
        let id = |name| value(name).and_then(|id| id.parse::<u32>().ok());
        let storage = value("AccountingStorageType").unwrap_or_default();
        let as_of = text.lines().next().and_then(|line| line.strip_prefix("Configuration data as of "));
        Self {
            as_of: as_of.and_then(|seconds| Timestamp::from_second(seconds.trim().parse().ok()?).ok()),
            next_job_id: value("NEXT_JOB_ID").and_then(|id| id.parse().ok()).filter(|id| *id != 0).map(JobId),
            release: value("SLURM_VERSION").filter(|release| !release.is_empty()).map(str::to_owned),
            private: value("PrivateData").map(words),
            slurm_user: value("SlurmUser").and_then(person),
            database: storage.ends_with("/slurmdbd"),
            ids: id("MaxJobId").zip(id("FirstJobId")).and_then(|(max, first)| max.checked_sub(first)),
        }
    }

    /// Has slurmctld not given this job id to any job yet? One that is far beyond the counter is of the round before, after
    /// which ids began anew: it counts as given, as does any where the counter or its range is not known.
    pub(super) fn is_yet_to_come(&self, id: JobId) -> bool {
        let (Some(JobId(next)), Some(ids)) = (self.next_job_id, self.ids) else { return false };
        let one_cluster = id.0 >> CLUSTER_BITS_FROM == next >> CLUSTER_BITS_FROM;
        one_cluster && id.0.checked_sub(next).is_some_and(|beyond| beyond < ids / 4)
    }

    /// How far slurmctld's clock is ahead of ours (negative: behind), where we asked and were answered at these instants: no
    /// more than can't be put down to the asking, nor to the parts of a second that it leaves out.
    pub(super) fn clock_ahead(&self, asked: Timestamp, answered: Timestamp) -> SignedDuration {
        let Some(earliest) = self.as_of else { return SignedDuration::ZERO };
        let ahead = answered.duration_until(earliest);
        let behind = asked.duration_until(earliest).saturating_add(SignedDuration::from_secs(1));
        if ahead.is_positive() { ahead } else { behind.min(SignedDuration::ZERO) }
    }

    /// Root or SlurmUser: these need no AdminLevel.
    pub(super) fn is_superuser(&self, user: &User) -> bool {
        match user {
            User::Named(name) => {
                name == "root" || self.slurm_user.as_ref().is_some_and(|(slurm, _)| slurm == name)
            }
            User::Id(id) => *id == 0 || self.slurm_user.as_ref().is_some_and(|(_, slurm)| slurm == id),
            User::OfCommands => false,
        }
    }

    /// SlurmUser with its id.
    pub(super) fn slurm_user(&self) -> Option<&(String, u32)> {
        self.slurm_user.as_ref()
    }

    /// Is there a database that AdminLevels stand in?
    pub(super) fn has_database(&self) -> bool {
        self.database
    }

    /// What is hidden from a user of this level, of what we must see.
    pub(super) fn hides(&self, level: Level) -> Result<Vec<&'static str>, &'static str> {
        let Some(private) = &self.private else { return Err("`scontrol show config` does not tell") };
        if level >= Level::Operator {
            return Ok(Vec::new());
        }
        let hidden = |what: &&str| private.contains(*what) || private.contains("all");
        Ok(NEEDED.into_iter().filter(hidden).collect())
    }

    /// Why a user of this level can't do what we have to, with what would help; `None` where it can.
    pub(super) fn lacks(&self, user: &User, level: Level, needed: Level) -> Option<Error> {
        (level < needed).then(|| Error::Rights {
            user: user.to_string(),
            level: level.name(),
            needed: needed.name(),
            fix: self.fix(user, needed),
        })
    }

    /// What gives a user the level.
    pub(super) fn fix(&self, user: &User, needed: Level) -> String {
        let needed = needed.name();
        match (user, self.database) {
            // `add` is for one that slurmdbd does not know; it says so of one that it does.
            (User::Named(name), true) => format!(
                "`sacctmgr -i modify user name={name} set adminlevel={needed}` (or, where slurmdbd does not know it yet, `sacctmgr -i add \
                 user name={name} account=root adminlevel={needed}`)"
            ),
            (User::Id(id), true) => {
                format!("`sacctmgr -i modify user name=$(id -nu {id}) set adminlevel={needed}`")
            }
            (User::OfCommands, true) => format!(
                "run them as root or SlurmUser, or `sacctmgr -i modify user name=NAME set adminlevel={needed}` for the user that they run as"
            ),
            (User::Named(_) | User::Id(_) | User::OfCommands, false) => {
                let slurm = self.slurm_user.as_ref().map_or("SlurmUser", |(name, _)| name);
                format!("without slurmdbd only root and {slurm} have rights: ask as one of these")
            }
        }
    }
}

/// `slurm(64030)`
fn person(text: &str) -> Option<(String, u32)> {
    let (name, id) = text.strip_suffix(')')?.split_once('(')?;
    Some((name.to_owned(), id.parse().ok()?))
}

/// A user's AdminLevel in what `scontrol show assoc_mgr flags=users` prints. A user who does not stand there has none.
pub(super) fn level(assoc_mgr: &str, user: &User) -> Level {
    match assoc_mgr.lines().find_map(|line| level_of(line, user)) {
        Some("Administrator") => Level::Administrator,
        Some("Operator") => Level::Operator,
        // "None", "Not Set", or a word of the future.
        Some(_) | None => Level::None,
    }
}

/// The lines of those who have a level.
pub(super) fn holders(assoc_mgr: &str) -> String {
    let has = |line: &&str| ["Administrator", "Operator"].iter().any(|level| line.contains(level));
    assoc_mgr.lines().filter(has).collect::<Vec<_>>().join("\n")
}

/// The AdminLevel of a line `UserName=svc(2004) DefAccount=ml DefWckey= AdminLevel=Operator`, where it is the user's.
fn level_of<'a>(line: &'a str, user: &User) -> Option<&'a str> {
    let words = || line.split_whitespace().filter_map(|word| word.split_once('='));
    let (_, who) = words().find(|(name, _)| *name == "UserName")?;
    let (name, id) = person(who)?;
    let ours = match user {
        User::Named(wanted) => *wanted == name,
        User::Id(wanted) => *wanted == id,
        User::OfCommands => false,
    };
    let (_, level) = words().find(|(name, _)| *name == "AdminLevel")?;
    ours.then_some(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 24.11 prints it.
    const USERS: &str = "Current Association Manager state\n\nUser Records\n\n\
        UserName=alice(2001) DefAccount=ml DefWckey= AdminLevel=None\n\
        UserName=root(0) DefAccount=root DefWckey= AdminLevel=Administrator\n\
        UserName=boss(2005) DefAccount=ml DefWckey= AdminLevel=Administrator\n\
        UserName=svc(2004) DefAccount=ml DefWckey= AdminLevel=Operator\n";

    fn config(private: &str, storage: &str) -> Config {
        Config::read(&format!(
            "Configuration data as of 2026-11-30T11:00:00\nAccountingStorageType   = {storage}\nNEXT_JOB_ID             = 7\n\
             PrivateData             = {private}\nSlurmUser               = slurm(64030)\n"
        ))
    }

    fn named(name: &str) -> User {
        User::Named(name.to_owned())
    }

    /// A whole second of the other clock is no skew, nor is the time that the question takes.
    #[test]
    fn only_what_the_asking_leaves_no_doubt_of_is_skew() {
        let at = |millis: i64| Timestamp::from_millisecond(1_796_052_000_000 + millis).unwrap();
        // (slurmctld's second, asked, answered in ms, ahead in ms)
        let rows = [
            (0, 0, 100, 0),
            (0, 900, 1_000, 0),
            (0, 1_100, 1_200, -100),
            (2, 0, 30_000, 0),
            (600, 100, 200, 599_800),
            (-600, 100, 200, -599_100),
        ];
        for (second, asked, answered, ahead) in rows {
            let config = Config::read(&format!("Configuration data as of {}\n", 1_796_052_000 + second));
            let found = config.clock_ahead(at(asked), at(answered));
            assert_eq!(found, SignedDuration::from_millis(ahead), "{second} {asked} {answered}");
        }
        assert_eq!(Config::read("").clock_ahead(at(0), at(1)), SignedDuration::ZERO);
    }

    #[test]
    fn the_job_id_counter_is_read() {
        let of = |value: &str| {
            Config::read(&format!(
                "MinJobAge               = 300 sec\nNEXT_JOB_ID             = {value}\nX = (null)\n"
            ))
        };
        assert_eq!(of("4712").next_job_id, Some(JobId(4712)));
        // 0 means that none is free.
        for unread in ["0", "N/A", "-1", ""] {
            assert_eq!(of(unread).next_job_id, None, "{unread:?}");
        }
        assert_eq!(Config::read("MinJobAge = 300 sec\n").next_job_id, None);
    }

    #[test]
    fn a_job_id_that_is_yet_to_come_is_of_another_cluster() {
        let of = |next: u32, max: u32| {
            Config::read(&format!(
                "FirstJobId              = 1\nMaxJobId                = {max}\nNEXT_JOB_ID             = {next}\n"
            ))
        };
        let max = 67_043_328;
        for (next, id, yet) in [
            (100, 99, false),
            (100, 100, true),
            (100, 5_000_000, true),
            // Ids began anew: these jobs are of the round before.
            (100, max - 1, false),
            (100, max / 2, false),
            // A federation's cluster 2 sent it to cluster 1.
            ((1 << 26) + 60_000_000, (2 << 26) + 5, false),
            ((1 << 26) + 100, (1 << 26) + 200, true),
        ] {
            assert_eq!(of(next, max).is_yet_to_come(JobId(id)), yet, "{next} {id}");
        }
        assert!(!of(5, 1_000).is_yet_to_come(JobId(990)));
        // Not known: not judged.
        for config in ["NEXT_JOB_ID = 5\n", "FirstJobId = 1\nMaxJobId = 1000\n", ""] {
            assert!(!Config::read(config).is_yet_to_come(JobId(7)), "{config:?}");
        }
    }

    #[test]
    fn levels_are_read_by_name_and_by_id() {
        for (user, expected) in [
            (named("alice"), Level::None),
            (named("svc"), Level::Operator),
            (named("boss"), Level::Administrator),
            (named("nobody"), Level::None),
            (User::Id(2004), Level::Operator),
            (User::Id(2005), Level::Administrator),
            (User::Id(9), Level::None),
        ] {
            assert_eq!(level(USERS, &user), expected, "{user}");
        }
        assert_eq!(
            level("Current Association Manager state\n\nNo users currently cached in Slurm.\n", &named("a")),
            Level::None
        );
    }

    #[test]
    fn who_has_a_level_is_told_from_who_has_none() {
        let of = |text: &str| holders(text).lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(of(USERS).len(), 3);
        assert!(of(USERS).iter().all(|line| !line.contains("alice")));
        assert_ne!(holders(USERS), holders(&USERS.replace("AdminLevel=Operator", "AdminLevel=None")));
        assert_eq!(holders(USERS), holders(&USERS.replace("UserName=alice(2001)", "UserName=alan(2009)")));
    }

    #[test]
    fn root_and_slurm_user_need_no_level() {
        let config = config("none", "(null)");
        for (user, superuser) in [
            (named("root"), true),
            (named("slurm"), true),
            (named("alice"), false),
            (User::Id(0), true),
            (User::Id(64030), true),
            (User::Id(2001), false),
            // Whoever that is, Slurm itself must tell.
            (User::OfCommands, false),
        ] {
            assert_eq!(config.is_superuser(&user), superuser, "{user}");
        }
        assert!(!Config::read("").is_superuser(&named("slurm")), "whoever SlurmUser is");
    }

    #[test]
    fn what_is_hidden_depends_on_the_level() {
        for (private, level, hidden) in [
            ("none", Level::None, &[][..]),
            ("jobs", Level::None, &["jobs"]),
            ("accounts,jobs,reservations,usage", Level::None, &["jobs", "reservations"]),
            ("Nodes", Level::None, &["nodes"]),
            ("all", Level::None, &["jobs", "nodes", "reservations"]),
            ("jobs", Level::Operator, &[]),
            ("jobs", Level::Administrator, &[]),
        ] {
            let config = config(private, "accounting_storage/slurmdbd");
            assert_eq!(config.hides(level).unwrap(), hidden, "{private} {level:?}");
        }
        assert!(Config::read("NEXT_JOB_ID = 1").hides(Level::None).is_err());
    }

    #[test]
    fn a_missing_right_comes_with_the_line_that_gives_it() {
        let with = config("none", "accounting_storage/slurmdbd");
        let lacks = |config: &Config, user: &User, level| config.lacks(user, level, Level::Administrator);
        assert!(lacks(&with, &named("boss"), Level::Administrator).is_none());
        for (config, user, words) in [
            (&with, named("svc"), "`sacctmgr -i modify user name=svc set adminlevel=Administrator`"),
            (
                &with,
                User::Id(2004),
                "`sacctmgr -i modify user name=$(id -nu 2004) set adminlevel=Administrator`",
            ),
            (
                &with,
                User::OfCommands,
                "user name=NAME set adminlevel=Administrator` for the user that they run as",
            ),
            (&super::tests::config("none", "(null)"), User::OfCommands, "only root and slurm have rights"),
            (&super::tests::config("none", "(null)"), named("svc"), "only root and slurm have rights"),
            (&super::tests::config("none", "accounting_storage/none"), named("svc"), "only root and slurm"),
        ] {
            let error = lacks(config, &user, Level::Operator).unwrap();
            assert!(matches!(error, Error::Rights { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(words) && text.contains("AdminLevel=Operator"), "{text}");
        }
    }
}
