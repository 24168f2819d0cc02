//! What a Pod's arguments say about the questions of the catalogue, and nothing else.
//!
//! Arguments hold API keys: only whether a flag of the catalogue is given, and the values the
//! catalogue lists, are kept; no other word is stored, logged or printed.

use crate::catalogue::ArgumentSpec;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The shells after whose `-c` a whole script is one argument.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];

/// How deep a shell inside a shell's script is followed; a deeper script stays one word.
const MAX_NESTED_SHELLS: usize = 4;

/// The catalogue's arguments that a Pod gives, with the last value where the catalogue lists values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    given: BTreeMap<String, Option<String>>,
}

impl Arguments {
    /// Reads a Pod's arguments (contract, section 3) for the arguments that its software's catalogue file lists.
    ///
    /// A sole argument and a shell's script are split as a shell would; text that has an unbalanced
    /// quote, which no shell would run, is split at white space. Every word that starts with `--` is
    /// a flag, also where it stands after another flag, as in the engines' own parsers.
    pub fn read(args: &[String], specs: &[ArgumentSpec]) -> Arguments {
        let words = words(args);
        let mut given = BTreeMap::new();
        for (index, word) in words.iter().enumerate() {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, attached) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let Some((spec, whole)) = specs.iter().find_map(|spec| Some((spec, names(spec, name)?))) else { continue };
            let value = attached.or_else(|| words.get(index + 1).map(String::as_str)).filter(|_| whole);
            let kept = value.and_then(|value| spec.values.iter().find(|listed| *listed == value));
            given.insert(spec.name.clone(), kept.cloned());
        }
        Arguments { given }
    }

    /// Whether an argument is given, by its full name without the dashes.
    pub fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// The value of an argument's last occurrence: one of those that the catalogue lists, else none.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.given.get(name)?.as_deref()
    }

    /// Whether the software runs with this value: it is the last one given, or the default of an
    /// argument that is not given.
    pub fn is(&self, spec: &ArgumentSpec, value: &str) -> bool {
        if self.has(&spec.name) {
            self.value(&spec.name) == Some(value)
        } else {
            spec.default.as_deref() == Some(value)
        }
    }
}

/// Whether a flag's name is this argument's: `Some(true)` when it names the argument itself,
/// `Some(false)` when it gives one key of it (`name.key`).
fn names(spec: &ArgumentSpec, name: &str) -> Option<bool> {
    let (head, key) =
        if spec.dotted { name.split_once('.').map_or((name, None), |(h, k)| (h, Some(k))) } else { (name, None) };
    let head: Cow<'_, str> = if head.contains('_') { head.replace('_', "-").into() } else { head.into() };
    let abbreviated = |shortest: &String| head.starts_with(shortest.as_str()) && spec.name.starts_with(head.as_ref());
    let same = *head == spec.name || spec.shortest.as_ref().is_some_and(abbreviated);
    same.then_some(key.is_none())
}

/// The words that the software's parser sees, with a sole argument and shells' scripts split.
fn words(args: &[String]) -> Vec<String> {
    let mut words = match args {
        [sole] => split(sole),
        _ => args.to_vec(),
    };
    for _ in 0..MAX_NESTED_SHELLS {
        let found = (0..words.len()).find_map(|shell| Some((shell, script(&words, shell)?)));
        let Some((shell, at)) = found else { break };
        // What follows the script is its "$0" and "$@", which a wrapper hands on to the software.
        let inner = split(&words[at]);
        words.splice(shell..=at, inner);
    }
    words
}

fn is_shell(word: &str) -> bool {
    SHELLS.contains(&word.rsplit('/').next().unwrap_or(word))
}

/// Where the script of the shell at `index` is, if there is a shell with `-c`. Arguments that begin
/// with a shell's options are a shell's, whose name is the container's command.
///
/// Options may be combined (`-lc`, `-euo pipefail -c`); the script is the first word that is none.
fn script(words: &[String], index: usize) -> Option<usize> {
    let mut at = if is_shell(words.get(index)?) { index + 1 } else { index };
    if at == index && index > 0 {
        return None;
    }
    let mut runs_script = false;
    loop {
        let word = words.get(at)?;
        if word == "--" {
            at += 1;
            break;
        }
        if !(word.starts_with('-') || word.starts_with('+')) || word.len() == 1 {
            break;
        }
        at += 1;
        if let Some(long) = word.strip_prefix("--") {
            at += usize::from(matches!(long, "rcfile" | "init-file"));
        } else {
            runs_script |= word.starts_with('-') && word.contains('c');
            // -o and -O are followed by an option's name.
            at += usize::from(word.contains(['o', 'O']));
        }
    }
    (runs_script && at < words.len()).then_some(at)
}

/// Splits text as a POSIX shell does, or at white space when a quote is not closed.
fn split(text: &str) -> Vec<String> {
    split_as_shell(text).unwrap_or_else(|| text.split_whitespace().map(str::to_owned).collect())
}

/// A POSIX shell's words: quotes, backslashes, continued lines and comments; an operator (`;`, `&`,
/// `|`, brackets, redirections) ends a word and is none. Nothing is expanded. None when a quote is not closed.
///
/// Own code: the `shlex` crate (2.0) gives an empty word for a continued line, which would be taken
/// for a flag's value, and keeps operators in words.
fn split_as_shell(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    // Some also for an empty word that quotes make.
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        other => word.push(other),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => match chars.next()? {
                            '\n' => {}
                            escaped @ ('$' | '`' | '"' | '\\') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => word.get_or_insert_default().push('\\'),
            },
            '#' if word.is_none() => {
                chars.by_ref().find(|c| *c == '\n');
            }
            c if c.is_whitespace() => words.extend(word.take()),
            ';' | '&' | '|' | '(' | ')' | '<' | '>' => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, SoftwareKind};

    fn read(catalogue: &Catalogue, kind: SoftwareKind, name: &str, args: &[&str]) -> Arguments {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        Arguments::read(&args, &catalogue.find(kind, name).unwrap().0.arguments)
    }

    /// `name` or `name=value` of everything that is kept.
    fn kept(arguments: &Arguments) -> Vec<String> {
        let shown = |(name, value): (&String, &Option<String>)| match value {
            None => name.clone(),
            Some(value) => format!("{name}={value}"),
        };
        arguments.given.iter().map(shown).collect()
    }

    const ENGINE: SoftwareKind = SoftwareKind::Engine;
    const ROUTER: SoftwareKind = SoftwareKind::Router;

    #[test]
    fn command_lines() {
        let catalogue = Catalogue::embedded().unwrap();
        let cases: &[(SoftwareKind, &str, &[&str], &[&str])] = &[
            // vLLM: the connector in every spelling.
            (ENGINE, "vLLM", &[], &[]),
            (ENGINE, "vLLM", &["vllm", "serve", "m", "--port", "8000"], &[]),
            (
                ENGINE,
                "vLLM",
                &["serve", "m", "--kv-transfer-config", r#"{"kv_connector":"X"}"#],
                &["kv-transfer-config"],
            ),
            (ENGINE, "vLLM", &["serve", "m", r#"--kv-transfer-config={"a":"b=c"}"#], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["serve", "m", "--kv_transfer_config", "{}"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["serve", "--kv_transfer-config={}", "m"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["serve", "m", "--kv-transfer-config.kv_connector", "X"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["serve", "m", "--kv_transfer_config.kv_connector=X"], &["kv-transfer-config"]),
            // No abbreviation, no longer name, no single dash, no value that looks alike, no other case.
            (ENGINE, "vLLM", &["serve", "m", "--kv-transfer", "{}"], &[]),
            (ENGINE, "vLLM", &["serve", "m", "--kv-transfer-configs", "{}"], &[]),
            (ENGINE, "vLLM", &["serve", "m", "-kv-transfer-config", "{}"], &[]),
            (ENGINE, "vLLM", &["serve", "m", "kv-transfer-config"], &[]),
            (ENGINE, "vLLM", &["serve", "m", "--KV-transfer-config", "{}"], &[]),
            // A sole argument is split, and a shell's script, by name and by path, with combined options.
            (ENGINE, "vLLM", &["vllm serve m --kv-transfer-config '{\"a\": 1}'"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["vllm serve m"], &[]),
            (ENGINE, "vLLM", &["sh", "-c", "vllm serve m --kv-transfer-config '{}'"], &["kv-transfer-config"]),
            (
                ENGINE,
                "vLLM",
                &["/bin/bash", "-lc", "exec vllm serve m \\\n  --kv_transfer_config {}"],
                &["kv-transfer-config"],
            ),
            (
                ENGINE,
                "vLLM",
                &["bash", "-euo", "pipefail", "-c", "vllm serve --kv-transfer-config=x;"],
                &["kv-transfer-config"],
            ),
            (
                ENGINE,
                "vLLM",
                &["tini", "--", "/bin/ash", "-ec", "vllm serve --kv-transfer-config x"],
                &["kv-transfer-config"],
            ),
            (ENGINE, "vLLM", &["bash", "-c", "--", "vllm serve --kv-transfer-config x"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["bash -c \"zsh -c 'vllm --kv-transfer-config x'\""], &["kv-transfer-config"]),
            (
                ENGINE,
                "vLLM",
                &["sh", "-c", "exec vllm \"$@\"", "--", "--kv-transfer-config", "{}"],
                &["kv-transfer-config"],
            ),
            (ENGINE, "vLLM", &["sh", "-c", "vllm serve m # --kv-transfer-config {}\n"], &[]),
            (ENGINE, "vLLM", &["sh", "-c", "vllm serve --served-model-name 'a --kv-transfer-config b'"], &[]),
            // The shell itself may be the container's command.
            (ENGINE, "vLLM", &["-c", "exec vllm serve m --kv-transfer-config '{}'"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["-o", "pipefail", "-ec", "vllm --kv-transfer-config x"], &["kv-transfer-config"]),
            (ENGINE, "vLLM", &["m", "-c", "a --kv-transfer-config x"], &[]),
            // Without -c a shell runs a file: its arguments are words already.
            (ENGINE, "vLLM", &["bash", "run.sh", "m --kv-transfer-config x"], &[]),
            // An unbalanced quote: split at white space.
            (ENGINE, "vLLM", &["vllm serve it's --kv-transfer-config x"], &["kv-transfer-config"]),
            // SGLang: abbreviations down to the listed ones, no shorter.
            (ENGINE, "SGLang", &["--enable-hierarchical-cache"], &["enable-hierarchical-cache"]),
            (
                ENGINE,
                "SGLang",
                &["python3", "-m", "sglang.launch_server", "--enable-hier"],
                &["enable-hierarchical-cache"],
            ),
            (ENGINE, "SGLang", &["-m", "--enable_hierarch"], &["enable-hierarchical-cache"]),
            (ENGINE, "SGLang", &["-m", "--enable-hie"], &[]),
            (ENGINE, "SGLang", &["-m", "--enable-hierarchical-caches"], &[]),
            (ENGINE, "SGLang", &["-m", "--enable-lm", "--enable-flexk"], &["enable-flexkv", "enable-lmcache"]),
            (ENGINE, "SGLang", &["-m", "--enable-l", "--enable-flex"], &[]),
            (ENGINE, "SGLang", &["-m", "--radix-cache", "flexkv"], &["radix-cache-backend=flexkv"]),
            (ENGINE, "SGLang", &["-m", "--radix_cache_backend=flexkv"], &["radix-cache-backend=flexkv"]),
            (ENGINE, "SGLang", &["-m", "--radix-cach", "flexkv"], &[]),
            // Values that no rule asks about are not kept; the last occurrence counts.
            (ENGINE, "SGLang", &["-m", "--radix-cache-backend", "secret"], &["radix-cache-backend"]),
            (ENGINE, "SGLang", &["-m", "--radix-cache-b=flexkv", "--radix-cache=other"], &["radix-cache-backend"]),
            (
                ENGINE,
                "SGLang",
                &["-m", "--radix-cache=other", "--radix-cache-backend", "flexkv"],
                &["radix-cache-backend=flexkv"],
            ),
            (ENGINE, "SGLang", &["-m", "--hicache-storage-backend", "mooncake"], &["hicache-storage-backend"]),
            (ENGINE, "SGLang", &["-m", "--hicache-storage", "mooncake"], &[]),
            (ENGINE, "SGLang", &["-m", "--api-key", "sk-1", "--enable-lmcache"], &["enable-lmcache"]),
            // vLLM's flags are not SGLang's, and dots are vLLM's.
            (ENGINE, "SGLang", &["-m", "--kv-transfer-config", "{}"], &[]),
            (ENGINE, "SGLang", &["-m", "--enable-lmcache.x"], &[]),
            // Routers: the policy.
            (ROUTER, "vllm-router", &["vllm-router", "--policy", "round_robin"], &["policy"]),
            (ROUTER, "vllm-router", &["vllm-router", "--policy=power_of_two"], &["policy=power_of_two"]),
            (ROUTER, "vllm-router", &["vllm-router --policy \\\n power_of_two &"], &["policy=power_of_two"]),
            (ROUTER, "vllm-router", &["sh", "-c", "(vllm-router --policy power_of_two)"], &["policy=power_of_two"]),
            (ROUTER, "vllm-router", &["sh", "-c", "vllm-router --policy '' cache_aware"], &["policy"]),
            (ROUTER, "vllm-router", &["x", "--policy", "cache_aware", "--policy", "random"], &["policy"]),
            (ROUTER, "vllm-router", &["x", "--policy", "cache_aware", "--policy"], &["policy"]),
            (ROUTER, "vllm-router", &["x", "--policy", "Cache_Aware"], &["policy"]),
            (ROUTER, "vllm-router", &["x", "--prefill-policy", "cache_aware"], &[]),
            (
                ROUTER,
                "sglang-gateway",
                &["python", "-m", "sglang_router.launch_router", "--worker-urls", "http://w:1", "--policy", "manual"],
                &["policy=manual"],
            ),
            (
                ROUTER,
                "sglang-gateway",
                &["sglang-router", "launch", "--pd-disaggregation", "--policy=random"],
                &["policy"],
            ),
        ];
        for (kind, name, args, expected) in cases {
            assert_eq!(kept(&read(&catalogue, *kind, name, args)), *expected, "{name} {args:?}");
        }
    }

    #[test]
    fn a_default_counts_only_while_the_argument_is_not_given() {
        let catalogue = Catalogue::embedded().unwrap();
        let spec = &catalogue.find(ROUTER, "vllm-router").unwrap().0.arguments[0];
        let cases: &[(&[&str], bool, bool)] = &[
            (&["vllm-router", "--port", "1"], true, false),
            (&["vllm-router", "--policy", "cache_aware"], true, false),
            (&["vllm-router", "--policy", "power_of_two"], false, true),
            (&["vllm-router", "--policy", "random"], false, false),
        ];
        for (args, cache_aware, power_of_two) in cases {
            let arguments = read(&catalogue, ROUTER, "vllm-router", args);
            assert_eq!(arguments.is(spec, "cache_aware"), *cache_aware, "{args:?}");
            assert_eq!(arguments.is(spec, "power_of_two"), *power_of_two, "{args:?}");
        }
    }

    #[test]
    fn no_other_word_is_kept() {
        let catalogue = Catalogue::embedded().unwrap();
        let arguments = read(
            &catalogue,
            ENGINE,
            "SGLang",
            &["--api-key", "sk-1", "--radix-cache-backend=sk-2", "--enable-lm=sk-3"],
        );
        assert!(!format!("{arguments:?}").contains("sk-"), "{arguments:?}");
    }

    #[test]
    fn words_of_a_shell() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("  a\t b\n", &["a", "b"]),
            ("a\\ b 'c d' \"e \\\" f\" g''h", &["a b", "c d", "e \" f", "gh"]),
            ("'' \"\"", &["", ""]),
            ("a \\\n  b\\\nc", &["a", "bc"]),
            ("\"a\\\nb\" '\\\n'", &["ab", "\\\n"]),
            ("a#b # c 'd\ne", &["a#b", "e"]),
            ("a;b&&c|d>e", &["a", "b", "c", "d", "e"]),
            ("\"a\\n\" b\\", &["a\\n", "b\\"]),
            ("it's a", &["it's", "a"]),
            ("a \"b", &["a", "\"b"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text), *expected, "{text:?}");
        }
    }
}
