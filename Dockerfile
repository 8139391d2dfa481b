# Two images from one file:
#   docker build --target operator  -t mizar/operator  .     (mizar-operator, mizar-webhook)
#   docker build --target nodeagent -t mizar/nodeagent .     (mizar-nodeagent, libmizar.so)
ARG BASE=debian:12-slim

# The shim alone: C and libc, so that changes in Python never rebuild it.
FROM ${BASE} AS shim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/*
COPY shim /src/shim
RUN make -C /src/shim OUT=/out /out/libmizar.so && strip --strip-debug /out/libmizar.so

# What both images stand on.
FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
ENV PATH=/opt/mizar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/mizar/src \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# Packages come as wheels with the hashes of the lock files. Pods can't write bytecode, so it is
# made here; unchecked, since nobody changes a source in an image.
FROM python AS pip
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv --without-pip /opt/mizar

FROM pip AS operator-packages
COPY requirements/operator.lock /tmp/
RUN /usr/bin/python3 -m pip --python /opt/mizar/bin/python install --quiet --no-deps --no-compile \
        --only-binary :all: --require-hashes --requirement /tmp/operator.lock \
    && find /opt/mizar -type d -name tests -prune -exec rm -rf {} + \
    && /opt/mizar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/mizar/lib

FROM pip AS nodeagent-packages
COPY requirements/nodeagent.lock /tmp/
RUN /usr/bin/python3 -m pip --python /opt/mizar/bin/python install --quiet --no-deps --no-compile \
        --only-binary :all: --require-hashes --requirement /tmp/nodeagent.lock \
    && find /opt/mizar -type d -name tests -prune -exec rm -rf {} + \
    && /opt/mizar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/mizar/lib

FROM pip AS operator-source
COPY core/mizar_core /opt/mizar/src/mizar_core
COPY kube/mizar_kube /opt/mizar/src/mizar_kube
COPY operator/mizar_operator /opt/mizar/src/mizar_operator
RUN printf '#!/opt/mizar/bin/python\nfrom mizar_operator.main import main\nraise SystemExit(main())\n' \
        > /opt/mizar/bin/mizar-operator \
    && printf '#!/opt/mizar/bin/python\nfrom mizar_operator.webhook.main import main\nraise SystemExit(main())\n' \
        > /opt/mizar/bin/mizar-webhook \
    && chmod 0755 /opt/mizar/bin/mizar-* \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/mizar/src

FROM pip AS nodeagent-source
COPY core/mizar_core /opt/mizar/src/mizar_core
COPY kube/mizar_kube /opt/mizar/src/mizar_kube
COPY nodeagent/mizar_nodeagent /opt/mizar/src/mizar_nodeagent
RUN printf '#!/opt/mizar/bin/python\nfrom mizar_nodeagent.main import main\nraise SystemExit(main())\n' \
        > /opt/mizar/bin/mizar-nodeagent \
    && chmod 0755 /opt/mizar/bin/mizar-* \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/mizar/src

FROM python AS operator
COPY --from=operator-packages /opt/mizar /opt/mizar
COPY --from=operator-source /opt/mizar/bin/mizar-operator /opt/mizar/bin/mizar-webhook /opt/mizar/bin/
COPY --from=operator-source /opt/mizar/src /opt/mizar/src
ARG VERSION=dev
# Kopf asks for the user's name, and no user id that a pod may run as is in /etc/passwd.
ENV MIZAR_VERSION=${VERSION} USER=mizar
USER 65532:65532
CMD ["mizar-operator"]

# Runs as root, without any capability: the kubelet's sockets and the host's slots are root's.
FROM python AS nodeagent
COPY --from=nodeagent-packages /opt/mizar /opt/mizar
COPY --from=shim /out/libmizar.so /usr/lib/mizar/libmizar.so
COPY --from=nodeagent-source /opt/mizar/bin/mizar-nodeagent /opt/mizar/bin/
COPY --from=nodeagent-source /opt/mizar/src /opt/mizar/src
ARG VERSION=dev
ENV MIZAR_VERSION=${VERSION}
CMD ["mizar-nodeagent"]
