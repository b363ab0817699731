//! `firstflight authority`: this user's development authority, and the stores that trust it.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use firstflight_certificates::authority::trust_stores::{
    self, Plan, SearchPaths, Selection, Step, StepError, StoreKind, TrustStore,
};
use firstflight_certificates::authority::{
    Authority, PERMITTED_DOMAINS, PERMITTED_NETWORKS, default_directory, name_in, remove,
    trust_anchor,
};
use firstflight_tls::Trust;
use nix::unistd::geteuid;
use serde_json::{Value, json};

/// Show this user's development authority, and install it in browsers and the system.
///
/// It signs certificates for `serve` and `try` if none is configured, only for names and addresses
/// of this machine or a private network; `fetch` and `bench` trust it automatically. It is stored
/// in firstflight/authority in $XDG_DATA_HOME or ~/.local/share; only its user can read the key
/// (docs/operate/certificates.md).
#[derive(Args)]
pub(crate) struct AuthorityArgs {
    #[command(subcommand)]
    command: Option<AuthorityCommand>,

    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum AuthorityCommand {
    /// Show the authority, and who trusts it (default).
    Show,
    /// Install it in the system, Chromium and Firefox, where present.
    Trust(StoreArgs),
    /// Remove it from all of them.
    Untrust {
        #[command(flatten)]
        stores: StoreArgs,

        /// Remove the development authorities of all users from the system.
        #[arg(long)]
        all: bool,
    },
    /// Remove it from all of them, and delete the authority and its key.
    Remove {
        /// Print the equivalent commands instead of running them.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
struct StoreArgs {
    /// Use only this store; may be repeated. Default: all.
    #[arg(long, value_name = "STORE")]
    only: Vec<Store>,

    /// Print the equivalent commands instead of running them.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Store {
    System,
    Chromium,
    Firefox,
}

/// Runs the subcommand.
///
/// # Errors
/// If the authority cannot be read or created.
pub(crate) fn run(args: AuthorityArgs) -> anyhow::Result<ExitCode> {
    let directory = default_directory()?;
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    match args.command.unwrap_or(AuthorityCommand::Show) {
        AuthorityCommand::Show => {
            show(Authority::open(&directory, now)?.as_ref(), &directory, args.json)
        }
        AuthorityCommand::Trust(StoreArgs { only, dry_run }) => {
            let stores = selected_stores(&only);
            if stores.is_empty() && !only.is_empty() {
                // Nothing would use an authority, so none is created. Without --only it is: `fetch`
                // and `bench` trust it.
                return Ok(conclude(&[], &only, TRUSTED_TEXTS, args.json));
            }
            let authority = match dry_run {
                false => Authority::open_or_create(&directory, now)?,
                true => Authority::open(&directory, now)?.ok_or_else(|| {
                    anyhow::anyhow!(
                        "there is no authority yet; run this without --dry-run to create it"
                    )
                })?,
            };
            let (name, certificate) = (authority.name(), authority.certificate());
            let trust = |store: &TrustStore| trust_stores::trust(store, name, certificate);
            let results = change(stores, dry_run, trust);
            Ok(conclude(&results, &only, TRUSTED_TEXTS, args.json))
        }
        AuthorityCommand::Untrust { stores: StoreArgs { only, dry_run }, all } => {
            let results = untrust(selected_stores(&only), dry_run, &directory, all);
            Ok(conclude(&results, &only, UNTRUSTED_TEXTS, args.json))
        }
        AuthorityCommand::Remove { dry_run } => {
            let results = untrust(selected_stores(&[]), dry_run, &directory, false);
            let files = match dry_run {
                false => remove(&directory)?,
                true => {
                    let files = ["authority.key", "authority.pem"].map(|name| directory.join(name));
                    files.into_iter().filter(|path| path.exists()).collect()
                }
            };
            if args.json {
                outln!("{:#}", json!({ "stores": results_json(&results), "files": files }));
            } else {
                out!("{}", results_text(&results, &[], UNTRUSTED_TEXTS));
                let verb = if dry_run { "rm" } else { "removed" };
                files.iter().for_each(|path| outln!("{verb} {}", path.display()));
            }
            Ok(exit_code(&results, &[]))
        }
    }
}

/// What `fetch` and `bench` trust by default: the system's authorities, and this user's development
/// authority unless `system_only` is set or there is none. The second value says why an existing
/// one cannot be used.
pub(crate) fn default_trust(system_only: bool) -> (Trust, Option<String>) {
    if system_only {
        return (Trust::System, None);
    }
    // Without a home directory there is no authority.
    let Ok(directory) = default_directory() else { return (Trust::System, None) };
    match trust_anchor(&directory) {
        Ok(Some(certificate)) => (Trust::SystemAnd(certificate), None),
        Ok(None) => (Trust::System, None),
        Err(error) => {
            (Trust::System, Some(format!("the development authority is not trusted: {error}")))
        }
    }
}

/// Removes the authority in `directory` from the stores, or with `all` those of all users.
fn untrust(
    stores: Vec<TrustStore>,
    dry_run: bool,
    directory: &Path,
    all: bool,
) -> Vec<StoreResult> {
    // Works for an unusable authority, too: the errors about it recommend removing it.
    let name = name_in(directory);
    let selection = match name.as_deref() {
        _ if all => Selection::All,
        Some(name) => Selection::Name(name),
        None => Selection::Unknown,
    };
    change(stores, dry_run, |store| trust_stores::untrust(store, selection))
}

/// The stores of this machine and user that `--only` selects.
fn selected_stores(only: &[Store]) -> Vec<TrustStore> {
    let mut stores = trust_stores::find_stores(&SearchPaths::from_environment());
    stores.retain(|store| only.is_empty() || only.contains(&store_of(store.kind)));
    stores
}

/// What was done in a store.
struct StoreResult {
    store: TrustStore,
    outcome: Outcome,
    commands: Vec<String>,
}

enum Outcome {
    /// Nothing had to be done.
    Already,
    /// The steps were executed.
    Done,
    /// The steps are only printed (`--dry-run`).
    Planned,
    /// The steps need root.
    NeedsRoot,
    Failed(StepError),
}

/// Changes the stores as planned, or with `dry_run` only plans it.
fn change(
    stores: Vec<TrustStore>,
    dry_run: bool,
    plan: impl Fn(&TrustStore) -> Result<Plan, StepError>,
) -> Vec<StoreResult> {
    let process = |store: TrustStore| {
        let (outcome, commands) = match plan(&store) {
            Ok(plan) => (execute(&plan, dry_run), commands(&plan)),
            Err(error) => (Outcome::Failed(error), Vec::new()),
        };
        StoreResult { store, outcome, commands }
    };
    stores.into_iter().map(process).collect()
}

fn execute(plan: &Plan, dry_run: bool) -> Outcome {
    if plan.steps.is_empty() {
        return Outcome::Already;
    }
    if dry_run {
        return Outcome::Planned;
    }
    if plan.needs_root && !geteuid().is_root() {
        return Outcome::NeedsRoot;
    }
    match plan.steps.iter().try_for_each(Step::run) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed(error),
    }
}

fn commands(plan: &Plan) -> Vec<String> {
    let sudo = if plan.needs_root && !geteuid().is_root() { "sudo " } else { "" };
    plan.steps.iter().map(|step| format!("{sudo}{step}")).collect()
}

fn store_of(kind: StoreKind) -> Store {
    match kind {
        StoreKind::System => Store::System,
        StoreKind::Chromium => Store::Chromium,
        StoreKind::Firefox => Store::Firefox,
    }
}

fn store_name(store: Store) -> &'static str {
    match store {
        Store::System => "system",
        Store::Chromium => "chromium",
        Store::Firefox => "firefox",
    }
}

/// The result of `trust`: for a store that needed no change, and for a changed one.
const TRUSTED_TEXTS: [&str; 2] = ["already trusts it", "now trusts it"];

/// The result of `untrust`: for a store that needed no change, and for a changed one.
const UNTRUSTED_TEXTS: [&str; 2] = ["does not trust it", "no longer trusts it"];

/// Prints what was done, and what is left to do. Returns the exit code.
fn conclude(results: &[StoreResult], only: &[Store], texts: [&str; 2], as_json: bool) -> ExitCode {
    match as_json {
        true => outln!("{:#}", results_json(results)),
        false => out!("{}", results_text(results, only, texts)),
    }
    exit_code(results, only)
}

/// Returns 1 if a step failed, if all stores need root, or if no store of `--only` was found.
fn exit_code(results: &[StoreResult], only: &[Store]) -> ExitCode {
    let failed = results.iter().any(|result| matches!(result.outcome, Outcome::Failed(_)));
    let all_need_root = results.iter().all(|result| matches!(result.outcome, Outcome::NeedsRoot));
    let nothing_done = if results.is_empty() { !only.is_empty() } else { all_need_root };
    if failed || nothing_done { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// `texts` describe a store that needed no change, and one that was changed.
fn results_text(results: &[StoreResult], only: &[Store], texts: [&str; 2]) -> String {
    if !results.is_empty() {
        return results.iter().map(|result| result_text(result, texts)).collect();
    }
    let names: Vec<_> = only.iter().map(|store| store_name(*store)).collect();
    match names.is_empty() {
        true => {
            "nothing to do: found neither the system's certificate store nor a browser\n".into()
        }
        false => format!("nothing to do: found no certificate store of {}\n", names.join(" or ")),
    }
}

fn results_json(results: &[StoreResult]) -> Value {
    results.iter().map(result_json).collect()
}

fn result_text(result: &StoreResult, [unchanged, changed]: [&str; 2]) -> String {
    let name = store_name(store_of(result.store.kind));
    let store = format!("{name:<9} {}", result.store.path.display());
    let command_lines =
        || result.commands.iter().map(|line| format!("  {line}\n")).collect::<String>();
    match &result.outcome {
        Outcome::Already => format!("{store}: {unchanged}\n"),
        Outcome::Done => {
            let restart = match result.store.kind {
                StoreKind::System => "",
                StoreKind::Chromium | StoreKind::Firefox => {
                    "; restart the browser if it is running"
                }
            };
            format!("{store}: {changed}{restart}\n")
        }
        Outcome::Planned => {
            format!("# {store}\n{}", command_lines().replace("\n  ", "\n").trim_start())
        }
        Outcome::NeedsRoot => format!("{store}: needs root; run\n{}", command_lines()),
        Outcome::Failed(error) => format!("{store}: {error}\n"),
    }
}

fn result_json(result: &StoreResult) -> Value {
    let (outcome, reason) = match &result.outcome {
        Outcome::Already => ("already", None),
        Outcome::Done => ("done", None),
        Outcome::Planned => ("planned", None),
        Outcome::NeedsRoot => ("needs root", None),
        Outcome::Failed(error) => ("failed", Some(error.to_string())),
    };
    json!({
        "store": result.store.kind,
        "path": result.store.path,
        "outcome": outcome,
        "reason": reason,
        "commands": result.commands,
    })
}

/// Prints the authority and the stores that trust it.
fn show(
    authority: Option<&Authority>,
    directory: &Path,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(authority) = authority else {
        match as_json {
            true => outln!("{:#}", json!({ "directory": directory, "name": null })),
            false => outln!(
                "There is no development authority in {} yet.\n`firstflight try`, `firstflight \
                 serve` without a certificate or `firstflight authority trust` creates one.",
                directory.display()
            ),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let statuses: Vec<TrustStatus> = trust_stores::find_stores(&SearchPaths::from_environment())
        .into_iter()
        .map(|store| {
            let trusted =
                trust_stores::is_trusted(&store, authority.name(), authority.certificate());
            (store, trusted)
        })
        .collect();
    let seconds = i64::try_from(authority.expires()).unwrap_or(i64::MAX);
    let expires = jiff::Timestamp::from_second(seconds)?.strftime("%Y-%m-%d").to_string();
    match as_json {
        true => outln!("{:#}", authority_json(authority, &expires, &statuses)),
        false => out!("{}", authority_text(authority, &expires, &statuses)),
    }
    Ok(ExitCode::SUCCESS)
}

type TrustStatus = (TrustStore, Result<bool, StepError>);

fn authority_json(authority: &Authority, expires: &str, statuses: &[TrustStatus]) -> Value {
    let status_json = |(store, trusted): &TrustStatus| {
        json!({
            "store": store.kind,
            "path": store.path,
            "trusts": trusted.as_ref().ok(),
            "reason": trusted.as_ref().err().map(ToString::to_string),
        })
    };
    json!({
        "name": authority.name(),
        "certificate": authority.certificate(),
        "expires": expires,
        "domains": PERMITTED_DOMAINS,
        "networks": networks(),
        "stores": statuses.iter().map(status_json).collect::<Value>(),
    })
}

fn authority_text(authority: &Authority, expires: &str, statuses: &[TrustStatus]) -> String {
    let mut text = format!(
        "{}, valid until {expires}\n{}\n\nsigns for {} and names below them,\nand for {}\n\n",
        authority.name(),
        authority.certificate().display(),
        PERMITTED_DOMAINS.join(", "),
        networks().join(", "),
    );
    for (store, trusted) in statuses {
        let trusted = match trusted {
            Ok(true) => "trusts it".to_owned(),
            Ok(false) => "does not trust it".to_owned(),
            Err(error) => error.to_string(),
        };
        let name = store_name(store_of(store.kind));
        text += &format!("{name:<9} {}: {trusted}\n", store.path.display());
    }
    text += "firstflight fetch and bench: trust it\n";
    text
}

fn networks() -> Vec<String> {
    PERMITTED_NETWORKS.iter().map(|(network, length)| format!("{network}/{length}")).collect()
}
