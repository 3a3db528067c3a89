//! `[[window]]` and `[[blackout]]`, in the configuration itself or in a calendar file. Decides what a key means; what
//! makes a window valid is the core's business.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::calendar::{
    Blackout, BlackoutSpec, Calendar, Error, NODES_MAX, Overlap, When, Window, WindowSpec, Zone,
};
use gpu_bridge_core::ids::{PoolName, Ticket, WindowName};
use gpu_bridge_core::model::{Domain, Site};
use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};
use toml::de::DeValue;

use super::daemon::{or, owned};
use super::policies::pool_name;
use super::problem::{Code, Place, Problem};
use super::reader::{Table, Value, closest};

/// Most windows, and most blackouts, of a site.
const ENTRIES_MAX: usize = 10_000;

/// What windows may name.
pub(super) struct Known<'a> {
    pub(super) pool_names: &'a BTreeSet<PoolName>,
    pub(super) site: &'a Site,
}

/// What was read.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) calendar: Calendar,
    /// Where each window is.
    pub(super) places: BTreeMap<WindowName, Place>,
}

/// Reads the windows and blackouts of a document.
pub(super) fn read(root: &Table<'_>, known: &Known<'_>, entries: &mut Entries) {
    for table in bounded(root, "window") {
        window(table, known, entries);
    }
    for table in bounded(root, "blackout") {
        blackout(table, &mut entries.calendar);
    }
    if let Some(value) = root.get("ics") {
        let advice = "write the dates as [[blackout]] or [[window]], or as except";
        value.problem(Code::NotYet, "an iCalendar file", "[[window]] and [[blackout]]", advice);
    }
}

fn bounded<'a>(root: &Table<'a>, key: &'static str) -> Vec<Table<'a>> {
    let tables = root.tables(key);
    if tables.len() > ENTRIES_MAX {
        let found = format!("{} [[{key}]] tables", tables.len());
        root.problem(
            Code::Value,
            key,
            &found,
            &format!("at most {ENTRIES_MAX}"),
            "remove those that are over",
        );
        return Vec::new();
    }
    tables
}

fn window(table: Table<'_>, known: &Known<'_>, entries: &mut Entries) {
    let name = table.need("name", "the window's name").and_then(|value| owned(&value));
    let pool = table.need("pool", "the name of a pool").and_then(|value| pool_name(&value, known.pool_names));
    let nodes = table.need("nodes", "a number of nodes").and_then(|value| value.count(1..=NODES_MAX));
    let when = when(&table);
    let zone = zone(&table);
    let lead = or(table.get("lead"), lead, || SignedDuration::ZERO);
    let cooldown = or(table.get("cooldown"), Value::duration, || SignedDuration::ZERO);
    let owner = table.need("owner", "who answers for it").and_then(|value| owned(&value));
    let ticket = or(table.get("ticket"), |value| value.text().map(|text| Some(Ticket::from(text))), || None);
    let expires = or(table.get("expires"), |value| date(value).map(Some), || None);
    let overlaps = [("max", Overlap::Max), ("add", Overlap::Add)];
    let overlap = or(table.get("overlap"), |value| value.choice(&overlaps), Overlap::default);
    let except = or(table.get("except"), dates, Vec::new);
    if let Some(of) = pool.as_ref().and_then(|pool| known.site.pools.get(pool))
        && of.domain() == Domain::Slurm
    {
        let found = format!("{}, a pool of Slurm's", of.name);
        let advice = "name the pool that is to get nodes from Slurm";
        table.problem(Code::Contradiction, "pool", &found, "a pool of Kubernetes'", advice);
    }
    if let (Some(pool), Some(nodes)) = (&pool, nodes)
        && let Some(ceiling) = known.site.pools.get(pool).and_then(|pool| pool.ceiling)
        && nodes > ceiling
    {
        let found = format!("{nodes} nodes for pool {pool} with a ceiling of {ceiling}");
        table.problem(
            Code::Contradiction,
            "nodes",
            &found,
            "nodes ≤ ceiling",
            "lower it, or raise the ceiling",
        );
    }
    let spec = (|| {
        Some(WindowSpec {
            name: WindowName::new(name?),
            pool: pool?,
            nodes: nodes?,
            when: when?,
            zone: zone?,
            lead: lead?,
            cooldown: cooldown?,
            owner: owner?,
            ticket: ticket?,
            expires: expires?,
            overlap: overlap?,
            except: except?,
        })
    })();
    match spec.map(Window::new) {
        None => {}
        Some(Err(errors)) => refuse(&table, &errors),
        Some(Ok(window)) => {
            let name = window.spec().name.clone();
            match entries.calendar.add_window(window) {
                Ok(()) => drop(entries.places.insert(name, table.place())),
                Err(error) => {
                    let found = error.to_string();
                    table.problem(Code::Duplicate, "name", &found, "unique names", "rename it or remove one");
                }
            }
        }
    }
    table.finish();
}

/// A window that is over for good is no mistake in the file: it was good once, and the daemon must still start on it.
pub(super) fn over(entries: (&Calendar, &BTreeMap<WindowName, Place>), now: Timestamp) -> Vec<Problem> {
    let (calendar, places) = entries;
    let over = calendar.windows().filter(|window| window.next_change_after(now).is_none());
    let told = over.filter_map(|window| {
        let place = places.get(&window.spec().name)?.clone();
        let last = window.last_started(now).map_or_else(String::new, |last| format!(" since {}", last.end));
        let found = format!("a window that is over{last}, and never on again");
        let advice = "remove it, or correct when it is and when it expires".to_owned();
        Some(place.problem(Code::Calendar, found, "a window that is still to be".to_owned(), advice))
    });
    told.collect()
}

fn blackout(table: Table<'_>, calendar: &mut Calendar) {
    let name = table.need("name", "the blackout's name").and_then(|value| owned(&value));
    let when = when(&table);
    let zone = zone(&table);
    let reason = table.need("reason", "why nothing may be taken").and_then(|value| owned(&value));
    let spec = (|| Some(BlackoutSpec { name: name?, when: when?, zone: zone?, reason: reason? }))();
    match spec.map(Blackout::new) {
        None => {}
        Some(Err(errors)) => refuse(&table, &errors),
        Some(Ok(blackout)) => {
            if let Err(error) = calendar.add_blackout(blackout) {
                let found = error.to_string();
                table.problem(Code::Duplicate, "name", &found, "unique names", "rename it or remove one");
            }
        }
    }
    table.finish();
}

fn refuse(table: &Table<'_>, errors: &[Error]) {
    for error in errors {
        let (expected, advice) = match error {
            Error::Cron(_) => ("five crontab fields that some date matches", "correct cron"),
            Error::Zone(_) => ("an IANA zone", "use a name such as \"Europe/Berlin\""),
            Error::NotPositive(_) => ("a duration above zero", "say how long the window is on"),
            Error::EndBeforeStart { .. } => ("an end after the start", "correct start or end"),
            Error::NoTicket => ("a ticket for a one-off window", "add ticket = \"…\""),
            Error::Expires(..) => ("an expiry after the window", "correct expires"),
            Error::Empty { .. }
            | Error::Negative { .. }
            | Error::TooLong { .. }
            | Error::Nodes(_)
            | Error::TooManyExcepts(_) => ("a value in its range", "correct it"),
        };
        table.problem(Code::Calendar, error.field(), &error.to_string(), expected, advice);
    }
}

/// `cron` and `duration`, or `start` and `end`.
fn when(table: &Table<'_>) -> Option<When> {
    let cron = table.get("cron");
    let start = table.get("start");
    let (duration, end) = (table.get("duration"), table.get("end"));
    match (cron, start) {
        (Some(cron), None) => {
            let cron = owned(&cron);
            if let Some(end) = end {
                let advice = "replace end by duration";
                end.problem(Code::Contradiction, "end beside cron", "cron with duration", advice);
            }
            let duration = table
                .need("duration", "how long it is on, such as \"6h\"")
                .and_then(|value| value.duration());
            Some(When::Cron { cron: cron?, duration: duration? })
        }
        (None, Some(start)) => {
            let start = wall_clock(&start);
            if let Some(duration) = duration {
                let advice = "replace duration by end";
                duration.problem(Code::Contradiction, "duration beside start", "start with end", advice);
            }
            let end = table
                .need("end", "when it ends, such as \"2027-11-11T00:00:00\"")
                .and_then(|value| wall_clock(&value));
            Some(When::Once { start: start?, end: end? })
        }
        (Some(cron), Some(_)) => {
            let advice = "remove cron and duration, or start and end";
            cron.problem(Code::Contradiction, "both cron and start", "one of the two", advice);
            None
        }
        (None, None) => {
            let expected = "cron and duration, or start and end";
            table.problem(Code::MissingKey, "cron", "nothing", expected, "say when it is on");
            None
        }
    }
}

/// Checked here, and not only with the whole window, so that it is reported beside other problems.
fn zone(table: &Table<'_>) -> Option<String> {
    let value = table.need("zone", "an IANA zone such as \"Asia/Shanghai\"")?;
    let name = value.text()?;
    if Zone::get(name).is_some() {
        return Some(name.to_owned());
    }
    let names = Zone::names();
    let advice = closest(name, names.iter().map(String::as_str)).map_or_else(
        || "use a name such as \"Europe/Berlin\"".to_owned(),
        |close| format!("did you mean {close:?}?"),
    );
    value.problem(Code::Calendar, &format!("unknown zone {}", value.shown()), "an IANA zone", &advice);
    None
}

fn lead(value: &Value<'_>) -> Option<SignedDuration> {
    if value.toml.as_str() == Some("learned") {
        let advice = "give a duration such as \"30m\" until there is one";
        value.problem(Code::NotYet, "\"learned\"", "a lead of this release", advice);
        return None;
    }
    value.duration()
}

fn wall_clock(value: &Value<'_>) -> Option<DateTime> {
    const EXPECTED: &str = "a wall-clock time such as \"2027-11-10T20:00:00\"";
    let text = moment(value, EXPECTED)?;
    // A date alone is refused: a person may mean its end.
    let parsed = text.parse::<DateTime>().ok().filter(|_| text.contains([':']));
    if text.ends_with(['Z', 'z']) || parsed.is_none() {
        return value.wrong(EXPECTED, "write date, T and time, without offset: zone says where");
    }
    parsed
}

fn date(value: &Value<'_>) -> Option<Date> {
    const EXPECTED: &str = "a date such as \"2026-12-25\"";
    let text = moment(value, EXPECTED)?;
    let parsed = text.parse::<Date>().ok().filter(|_| text.len() == 10);
    parsed.or_else(|| value.wrong(EXPECTED, "write year-month-day"))
}

fn dates(value: &Value<'_>) -> Option<Vec<Date>> {
    let items = value.list()?;
    let count = items.len();
    let dates: Vec<Date> = items.iter().filter_map(date).collect();
    (dates.len() == count).then_some(dates)
}

/// A date or time, in quotes or without.
fn moment(value: &Value<'_>, expected: &str) -> Option<String> {
    match value.toml {
        DeValue::String(text) => Some(text.as_ref().to_owned()),
        DeValue::Datetime(datetime) if datetime.offset.is_none() => Some(datetime.to_string()),
        DeValue::Datetime(_) => value.wrong(expected, "remove the offset: zone says where"),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => value.wrong(expected, "put it in quotes"),
    }
}
