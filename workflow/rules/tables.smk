# Tidy tables: all runs of the suite, and the bytes of every model and method.


rule collect:
    input:
        runs=summaries(COLLECTED),
        code="experiments/results.py",
    output:
        runs=f"{RESULTS}/tables/runs.parquet",
        metrics=f"{RESULTS}/tables/metrics.parquet",
    log:
        f"{RESULTS}/logs/collect.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        tables=subpath(output.runs, parent=True),
        runs=lambda wildcards, input: [Path(file).parent for file in input.runs],
    message:
        "Tables: all runs"
    shell:
        "python -m experiments.results collect {params.tables} {params.runs} > {log} 2>&1"


if ELSEWHERE:

    rule elsewhere:
        input:
            runs=summaries(ELSEWHERE),
            code="experiments/elsewhere.py",
        output:
            f"{RESULTS}/tables/elsewhere.parquet",
        log:
            f"{RESULTS}/logs/elsewhere.log",
        conda:
            "../../environment.yml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            source=SAMPLE,
            runs=lambda wildcards, input: [Path(file).parent for file in input.runs],
        message:
            "Table: pretrained models on held-out documents of a C4 sample"
        shell:
            "python -m experiments.elsewhere {output} {params.runs}"
            " --source {params.source} > {log} 2>&1"


rule memory:
    input:
        specs=ancient([f"{SPEC}/runs/{run}.yaml" for run in RUNS]),
        code=files("experiments/memory.py", "memopt/accounting/*.py"),
        shapes="memopt/accounting/shapes.toml",
        printed="experiments/printed/memory.yaml",
    output:
        f"{RESULTS}/tables/memory.parquet",
    log:
        f"{RESULTS}/logs/memory.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        suite=SUITE,
    message:
        "Table: bytes by formula, beside printed figures"
    shell:
        "python -m experiments.memory {output} --suite {params.suite} > {log} 2>&1"


rule memory_steps:
    input:
        specs=ancient([f"{SPEC}/runs/{run}.yaml" for run in RUNS]),
        code=files("experiments/memory_steps.py", "memopt/accounting/*.py"),
        shapes="memopt/accounting/shapes.toml",
        printed="experiments/printed/steps.yaml",
    output:
        steps=f"{RESULTS}/tables/steps.parquet",
        timeline=f"{RESULTS}/tables/timeline.parquet",
    log:
        f"{RESULTS}/logs/memory_steps.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        suite=SUITE,
        tables=subpath(output.steps, parent=True),
    message:
        "Table: whole steps on tensors without memory"
    shell:
        "python -m experiments.memory_steps {params.tables} --suite {params.suite} > {log} 2>&1"


if GRADIENTS:

    rule gradients:
        input:
            specs=ancient([f"{SPEC}/runs/{run}.yaml" for run in MEASURED]),
            data=[manifest(RUNS[run]) for run in MEASURED],
            code=files("experiments/concentration.py", "experiments/gradients.py"),
        output:
            GRADIENTS,
        log:
            f"{RESULTS}/logs/gradients.log",
        benchmark:
            f"{RESULTS}/benchmarks/gradients.tsv"
        conda:
            "../../environment.yml"
        threads: max(RUNS[run]["threads"] for run in MEASURED)
        resources:
            mem_mb=max(RUNS[run]["mem_mb"] for run in MEASURED),
            runtime=sum(RUNS[run]["runtime_min"] for run in MEASURED),
        params:
            steps=",".join(map(str, PLAN["gradients"]["steps"])),
        message:
            "Table: where the energy of gradients lies"
        shell:
            "python -m experiments.gradients {output} {input.specs}"
            " --steps {params.steps} > {log} 2>&1"


# Trains again, and takes the gradient of every row beside: three times a run's time.
if MICRO_BATCHES:

    rule micro_batches:
        input:
            specs=ancient([f"{SPEC}/runs/{run}.yaml" for run in MICRO_BATCHES]),
            data=[
                f"data/prepared/{RUNS[run]['data_id']}/manifest.json"
                for run in MICRO_BATCHES
            ],
            code="experiments/micro_batches.py",
        output:
            f"{RESULTS}/tables/micro_batches.parquet",
        log:
            f"{RESULTS}/logs/micro_batches.log",
        conda:
            "../../environment.yml"
        resources:
            mem_mb=4000,
            runtime=60,
        message:
            "Table: AdamA's steps beside AdamW's"
        shell:
            "python -m experiments.micro_batches {output} {input.specs} > {log} 2>&1"
