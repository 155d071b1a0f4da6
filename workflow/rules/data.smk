# Corpus to tokens: download or extract, clean, split, tokenizer, memory-mapped shards.


# The id holds a hash of the specification, and several suites may share the data. So the
# specification is a parameter: as an input, each suite's own copy would make it again.
rule prepare_data:
    output:
        "data/prepared/{data}/manifest.json",
    log:
        f"{RESULTS}/logs/data/{{data}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/data/{{data}}.tsv"
    # before any run that could start, since more runs wait for it
    priority: 1
    conda:
        "../../environment.yml"
    threads: 4
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        spec=f"{SPEC}/datasets/{{data}}.yaml",
        folder=subpath(output[0], parent=True),
    message:
        "Data: {wildcards.data}"
    shell:
        "python -m experiments.data prepare {params.spec} {params.folder}"
        " --workers {threads} > {log} 2>&1"
