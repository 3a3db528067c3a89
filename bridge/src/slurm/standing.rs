//! How we stand with Slurm: its release and its job id counter, which no REST version shows, and whether somebody through whom we
//! look or write lacks a level, so that Slurm hides from us or refuses. It knows no node, and decides only whether a look may
//! be believed.

use gpu_bridge_core::ids::JobId;
use jiff::SignedDuration;

use super::commands::Commands;
use super::error::Error;
use super::rights::{self, Config, Level, User};
use super::source::Source;
use super::version::{Jobs, Mouth, Version};
use crate::daemon::clock::Clock;

/// How we stand.
pub(super) struct Standing {
    /// How far slurmctld's clock is ahead of ours.
    pub(super) clock_ahead: SignedDuration,
    pub(super) next_job_id: Option<JobId>,
    pub(super) release: Option<String>,
    /// What we may not do.
    pub(super) rights: Option<String>,
    /// That something may be hidden, where nobody can tell.
    pub(super) doubt: Option<Error>,
}

/// What somebody looks at for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Nothing.
    Not,
    /// Nodes, and jobs by jobs/state: that hides none, and a job without its record fails the look.
    ByStates,
    /// Lists that leave out what is hidden.
    WithGaps,
}

/// One through whom we ask.
struct Actor {
    user: User,
    /// `None` where it could not be told.
    level: Option<Level>,
    looks: Looks,
    /// What its writes need.
    needs: Level,
}

impl Standing {
    /// A look from which something is hidden is an error; without the counter it is good, only a restored backup then goes
    /// unnoticed.
    pub(super) async fn of(
        source: &dyn Source,
        commands: &Commands,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let asked = clock.now();
        let (config, why) = match commands.ask(&["show", "config"]).await {
            Ok(text) => (Config::read(&text), "it has no NEXT_JOB_ID".to_owned()),
            Err(error) => (Config::default(), error.to_string()),
        };
        let clock_ahead = config.clock_ahead(asked, clock.now());
        commands.troubles.counter.looked(config.next_job_id.is_none().then_some(&*why));
        let version = source.version().await?;
        let (mut doubt, mut rights) = (None, None);
        for actor in actors(source, commands, &config, version).await? {
            let Actor { user, level, looks, needs } = actor;
            let hidden = |what: String| {
                let fix = config.fix(&user, Level::Administrator);
                Error::Hidden { user: user.to_string(), what, fix }
            };
            match (config.hides(level.unwrap_or(Level::None)), looks) {
                (_, Looks::Not) | (Err(_), Looks::ByStates) => {}
                (Ok(what), Looks::ByStates | Looks::WithGaps) if what.is_empty() => {}
                (Ok(what), Looks::ByStates | Looks::WithGaps) => return Err(hidden(what.join(" and "))),
                (Err(why), Looks::WithGaps) => doubt = Some(hidden(format!("jobs, perhaps ({why}),"))),
            }
            let lacks = level.and_then(|level| config.lacks(&user, level, needs));
            rights = rights.or(lacks.map(|error| format!("{} {error}", error.code())));
        }
        Ok(Self { clock_ahead, next_job_id: config.next_job_id, release: config.release, rights, doubt })
    }
}

/// Everyone through whom we ask, but root and SlurmUser.
async fn actors(
    source: &dyn Source,
    commands: &Commands,
    config: &Config,
    version: Option<Version>,
) -> Result<Vec<Actor>, Error> {
    let mut actors = Vec::new();
    let scontrol = |mouth| mouth != Mouth::Rest;
    // What the commands do beside slurmrestd, or alone.
    let (looks, needs) = match version {
        None => (Looks::WithGaps, Level::Administrator),
        Some(Version { jobs, node, reservation, .. }) => {
            let looks = if jobs == Jobs::Squeue { Looks::WithGaps } else { Looks::Not };
            let operator = if scontrol(reservation) { Level::Operator } else { Level::None };
            (looks, if scontrol(node) { Level::Administrator } else { operator })
        }
    };
    if looks != Looks::Not || needs != Level::None {
        actors.push(Actor {
            user: User::OfCommands,
            level: of_commands(commands, config, looks).await,
            looks,
            needs,
        });
    }
    let Some(Version { jobs, node, .. }) = version else { return Ok(actors) };
    let user = source.acts_as().await?;
    if !config.is_superuser(&user) {
        let level = Some(of_user(commands, config, &user).await);
        let looks = if jobs == Jobs::States { Looks::ByStates } else { Looks::WithGaps };
        let needs = if node == Mouth::Rest { Level::Administrator } else { Level::None };
        actors.push(Actor { user, level, looks, needs });
    }
    Ok(actors)
}

/// The level of the user whom Slurm takes the commands to be from; `None` where it does not tell. Where something is hidden from
/// those without one, a level that was taken away is noticed in the same look.
async fn of_commands(commands: &Commands, config: &Config, looks: Looks) -> Option<Level> {
    // Who can't read the configuration has no proof either.
    let hides = looks != Looks::Not && !config.hides(Level::None).ok()?.is_empty();
    let holders = if hides && config.has_database() {
        rights::holders(&assoc_mgr(commands, config).await?)
    } else {
        String::new()
    };
    let level = commands.level(&format!("{:?} {holders}", config.slurm_user())).await;
    let why = level.as_ref().err().map(ToString::to_string);
    commands.troubles.own_level.looked(why.as_deref());
    level.ok()
}

/// The user's AdminLevel, as slurmctld has it; none where it can't be asked.
async fn of_user(commands: &Commands, config: &Config, user: &User) -> Level {
    assoc_mgr(commands, config).await.map_or(Level::None, |text| rights::level(&text, user))
}

/// Who has which AdminLevel; `None` where there is no database, or it can't be asked.
async fn assoc_mgr(commands: &Commands, config: &Config) -> Option<String> {
    if !config.has_database() {
        return None;
    }
    let text = commands.ask(&["show", "assoc_mgr", "flags=users"]).await;
    let why = text.as_ref().err().map(ToString::to_string);
    commands.troubles.admin_levels.looked(why.as_deref());
    text.ok()
}
