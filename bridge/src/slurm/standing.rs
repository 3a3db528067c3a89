//! How we stand with Slurm: its release and its job id counter, which no REST version shows, and whether somebody through whom we
//! look or write lacks a level, so that Slurm hides from us or refuses. It knows no node, and decides only whether a look may
//! be believed.

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
    /// What slurmctld says of itself.
    pub(super) config: Config,
    /// What we may not do, or that nobody can tell.
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
    /// Where it can't be told, why.
    level: Result<Level, String>,
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
        let (config, failed) = match commands.ask(&["show", "config"]).await {
            Ok(text) => (Config::read(&text), None),
            Err(error) => (Config::default(), Some(error.to_string())),
        };
        let clock_ahead = config.clock_ahead(asked, clock.now());
        let why = failed.as_deref().unwrap_or("it has no NEXT_JOB_ID");
        commands.troubles.counter.looked(config.next_job_id.is_none().then_some(why));
        let version = source.version().await?;
        let (mut doubt, mut rights) = (None, None);
        for actor in actors(source, commands, &config, failed.as_deref(), version).await? {
            let Actor { user, level, looks, needs } = actor;
            let perhaps = |what: &str, why: &str| Error::Hidden {
                what: format!(
                    "whether slurm hides {what} of others from user {user} (PrivateData) can't be told"
                ),
                why: why.to_owned(),
            };
            let least = level.as_ref().copied().unwrap_or(Level::None);
            match (config.hides(least), looks) {
                (_, Looks::Not) | (Err(_), Looks::ByStates) => {}
                (Ok(what), Looks::ByStates | Looks::WithGaps) if what.is_empty() => {}
                (Ok(what), Looks::ByStates | Looks::WithGaps) => {
                    let what = what.join(" and ");
                    match &level {
                        Ok(_) => {
                            let what = format!("slurm hides {what} of others from user {user} (PrivateData)");
                            return Err(Error::Hidden { what, why: config.fix(&user, Level::Administrator) });
                        }
                        Err(why) => doubt = Some(perhaps(&what, why)),
                    }
                }
                (Err(untold), Looks::WithGaps) => {
                    doubt = Some(perhaps("jobs", failed.as_deref().unwrap_or(untold)));
                }
            }
            let lacks = match &level {
                Ok(level) => {
                    config.lacks(&user, *level, needs).map(|error| format!("{} {error}", error.code()))
                }
                Err(_) if needs == Level::None => None,
                Err(why) => Some(format!("GB0330 what slurm lets user {user} write can't be told: {why}")),
            };
            rights = rights.or(lacks);
        }
        Ok(Self { clock_ahead, config, rights, doubt })
    }
}

/// Everyone through whom we ask, but root and SlurmUser.
async fn actors(
    source: &dyn Source,
    commands: &Commands,
    config: &Config,
    failed: Option<&str>,
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
            level: of_commands(commands, config, failed, looks).await,
            looks,
            needs,
        });
    }
    let Some(Version { jobs, node, .. }) = version else { return Ok(actors) };
    let user = source.acts_as().await?;
    if !config.is_superuser(&user) {
        let level = of_user(commands, config, failed, &user).await;
        let looks = if jobs == Jobs::States { Looks::ByStates } else { Looks::WithGaps };
        let needs = if node == Mouth::Rest { Level::Administrator } else { Level::None };
        actors.push(Actor { user, level, looks, needs });
    }
    Ok(actors)
}

/// The level of the user whom Slurm takes the commands to be from, or why it does not tell. Where something is hidden from
/// those without one, a level that was taken away is noticed in the same look.
async fn of_commands(
    commands: &Commands,
    config: &Config,
    failed: Option<&str>,
    looks: Looks,
) -> Result<Level, String> {
    // Who can't read the configuration has no proof either.
    let untold = |untold: &str| failed.unwrap_or(untold).to_owned();
    let hides = looks != Looks::Not && !config.hides(Level::None).map_err(untold)?.is_empty();
    // The proof is scontrol's.
    if let Some(apart) = commands.apart.as_ref().filter(|_| hides) {
        return Err(apart.clone());
    }
    let holders = if hides && config.has_database() {
        rights::holders(&assoc_mgr(commands).await?)
    } else {
        String::new()
    };
    let level = commands.level(&format!("{:?} {holders}", config.slurm_user())).await;
    commands.troubles.own_level.looked(level.as_ref().err().map(String::as_str));
    level
}

/// The user's AdminLevel, as slurmctld has it, or why it can't be asked.
async fn of_user(
    commands: &Commands,
    config: &Config,
    failed: Option<&str>,
    user: &User,
) -> Result<Level, String> {
    match failed {
        Some(failed) => Err(failed.to_owned()),
        None if config.has_database() => Ok(rights::level(&assoc_mgr(commands).await?, user)),
        None => Ok(Level::None),
    }
}

/// Who has which AdminLevel, or why that can't be asked.
async fn assoc_mgr(commands: &Commands) -> Result<String, String> {
    let text = commands.ask(&["show", "assoc_mgr", "flags=users"]).await.map_err(|error| error.to_string());
    commands.troubles.admin_levels.looked(text.as_ref().err().map(String::as_str));
    text
}
